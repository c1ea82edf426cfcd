"""Ways out of the language: in a cell they lead nowhere; the filter stops them."""

from __future__ import annotations

import gc
import importlib
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest

from toolcell.core import InvalidInputError, SandboxUnavailableError
from toolcell.sandbox import CodePolicy, Limits, SandboxConfig, SandboxManager
from toolcell.sandbox.backends.namespaces import SubprocessBackend
from toolcell.sandbox.backends.restricted import ProcessBackend
from toolcell.sandbox.client.channel import Channel
from toolcell.sandbox.spi import OpaqueValue

from ..support.attacks.as_programs import program

pytestmark = pytest.mark.anyio

code_policy = importlib.import_module("toolcell.sandbox.programs.code_policy")


@dataclass(frozen=True)
class Canary:
    """A file of the host to read, and one to make."""

    secret: str
    readable: Path
    touched: Path


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Canary]:
    found = Canary(secrets.token_hex(16), tmp_path / "secret", tmp_path / "touched")
    found.readable.write_text(found.secret)
    found.readable.chmod(0o644)
    tmp_path.chmod(0o777)
    yield found
    assert found.readable.read_text() == found.secret
    assert not found.touched.exists()


def walk_out(secret_path: str, touched: str) -> list[str]:
    from collections.abc import Generator

    said: list[str] = []

    def note(action: Callable[[], object]) -> None:
        try:
            said.append(str(action())[:2000])
        except BaseException as error:
            said.append(f"{type(error).__name__}: {error}")

    def by_classes() -> str:
        base: Any = ().__class__.__base__
        found: Any = [
            subclass
            for subclass in base.__subclasses__()
            if subclass.__name__ == "_wrap_close"
        ]
        scope = found[0].__init__.__globals__
        scope["system"](f"touch {touched}")
        return str(scope["popen"](f"cat {secret_path}").read())

    def by_generator() -> str:
        def generator() -> Generator[int]:
            yield 1

        walked: Any = generator()
        frame: Any = walked.gi_frame
        names = []
        while frame is not None:
            names += [frame.f_code.co_filename, *frame.f_globals]
            frame = frame.f_back
        return " ".join(names)

    def by_traceback() -> str:
        names = []
        try:
            raise ValueError
        except ValueError as error:
            frame: Any = error.__traceback__ and error.__traceback__.tb_frame
            while frame is not None:
                names.append(str(list(frame.f_globals)))
                frame = frame.f_back
        return " ".join(names)

    for action in (by_classes, by_generator, by_traceback):
        note(action)
    return said


def talk_out(secret_path: str, touched: str) -> list[str]:
    import ctypes
    import io
    import string

    said: list[str] = []

    def note(action: Callable[[], object]) -> None:
        try:
            said.append(str(action())[:2000])
        except BaseException as error:
            said.append(f"{type(error).__name__}: {error}")

    def by_format() -> str:
        text = "{0.__class__.__init__.__globals__}"
        return text.format(string.Formatter()) + string.Formatter().format(
            "{0.__globals__}", note
        )

    def by_error() -> str:
        try:
            return str(io.nothing)  # type: ignore[attr-defined]
        except AttributeError as error:
            return str(error.obj.open(secret_path).read())  # type: ignore[attr-defined]

    def by_library() -> str:
        libc = ctypes.CDLL(None)
        command = f"touch {touched}; cat {secret_path} > /tmp/out"
        libc.system(command.encode())
        with open("/tmp/out") as file:
            return file.read()

    for action in (by_format, by_error, by_library):
        note(action)
    return said


@pytest.mark.promise("E-1", "E-2", "E-4", "E-5", "E-6", "E-9")
@pytest.mark.parametrize("escape", [walk_out, talk_out])
async def test_ways_out_of_the_language_end_in_the_cell(
    sandbox: SandboxManager, canary: Canary, escape: Callable[[str, str], list[str]]
) -> None:
    inputs = {"secret_path": str(canary.readable), "touched": str(canary.touched)}
    result = await sandbox.run(program(escape), inputs=inputs)

    assert result.status == "ok", result.stderr
    assert isinstance(result.value, list) and len(result.value) == 3
    assert canary.secret not in str(result.value)
    # The frames end in the cell's own runner.
    assert "SandboxManager" not in str(result.value)


@pytest.fixture
async def last_resort(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SandboxManager]:
    """A manager on a machine without any namespaces."""

    async def refuse(self: SubprocessBackend) -> None:
        why = "this machine gives no namespaces"
        raise SandboxUnavailableError(why, details={"kernel": why})

    monkeypatch.setattr(SubprocessBackend, "start", refuse)
    config = SandboxConfig(backend="subprocess", minimum_isolation="process")
    async with SandboxManager(config) as manager:
        yield manager


READ = "open({path!r}).read()"
FILTERED = {
    "classes": (1, "().__class__.__base__.__subclasses__()"),
    "getattr": (1, "getattr((), '__class__')"),
    "getattr built": (1, "getattr((), '__cl' + 'ass__')"),
    "open": (1, READ),
    "import": (1, "import os\nos.listdir('/')"),
    "builtins": (1, "__builtins__['__import__']('os')"),
    "eval": (1, "eval('1')"),
    "hints": (
        2,
        'import typing\ndef f(x: "[c for c in ().__class__.__base__.__subclasses__()'
        " if c.__name__ == '_wrap_close'][0].__init__.__globals__['popen']"
        "('cat {path}').read()\"): pass\ntyping.get_type_hints(f)",
    ),
    "import from": (
        2,
        "from typing import sys\nsys.modules['os'].popen('cat {path}').read()",
    ),
    "codecs": (2, "from json import codecs as c\nc.getreader('utf-8')"),
    "attribute module": (2, "import json\njson.codecs"),
    "set by augment": (3, "import math\nmath.pi += 1"),
    "set attribute": (3, "import math\nmath.pi = 3"),
    "set item of type": (3, "int.real = 1"),
    "delete attribute": (3, "import math\ndel math.pi"),
    "hasattr": (3, "if hasattr((), '__class__'): x = 1\nx"),
    "loop target": (3, "import math\nfor math.pi in [3]: pass"),
    "with target": (3, "import math\nwith open('x') as math.pi: pass"),
    "generator": (4, "g = (x for x in [1])\ng.gi_frame.f_back"),
    "generator by name": (4, "getattr((x for x in [1]), 'gi_' + 'frame')"),
    "traceback": (4, "try:\n    1 / 0\nexcept Exception as e:\n    e.__traceback__"),
    "code": (4, "def f(): pass\ngetattr(f, 'func_' + 'code')"),
    "format": (5, "'{0.__class__}'.format(1)"),
    "format of str": (5, "str.format('{0.__class__}', 1)"),
    "format of a subclass": (
        5,
        "class S(str):\n    pass\nS.format('{0.__class__}', 1)",
    ),
    "format of a user string": (
        5,
        "import collections.abc\ncollections.UserString('{0.__class__}').format(1)",
    ),
    "format by getattr": (5, "getattr('{0.__class__}', 'for' + 'mat')(1)"),
    "format map": (5, "'{x.__class__}'.format_map({'x': 1})"),
    "f-string": (5, "f'{().__class__}'"),
    "error object": (
        6,
        "try:\n    [].x\nexcept AttributeError as e:\n    y = e.obj\ny",
    ),
    "error star": (7, "try:\n    1 / 0\nexcept* ZeroDivisionError as e:\n    pass"),
    "match": (7, "match 1:\n    case object(__class__=c):\n        pass\nc"),
    "shadow": (8, "def f(_getattr_, /): return ().__class__\nf(1)"),
    "shadow lambda": (8, "(lambda _getattr_, /: 1)(2)"),
    "shadow keyword": (8, "def f(*, _getitem_=1): return 1\nf()"),
    "shadow star": (8, "def f(*_write_, **_print_): return 1\nf()"),
    "shadow walrus": (8, "(_getattr_ := 1)"),
    "shadow import": (8, "import math as _getattr_"),
    "shadow class": (8, "class _getattr_: pass"),
    "shadow global": (8, "def f():\n    global _getattr_\n    _getattr_ = 1\nf()"),
    "shadow except": (8, "try:\n    1 / 0\nexcept Exception as _getattr_:\n    pass"),
}


@pytest.mark.promise("E-1", "E-2", "E-3", "E-4", "E-5", "E-6", "E-7", "E-8")
@pytest.mark.parametrize("name", FILTERED)
async def test_the_filter_of_last_resort_stops_it(
    last_resort: SandboxManager, canary: Canary, name: str
) -> None:
    code = FILTERED[name][1].replace("{path!r}", repr(str(canary.readable)))
    code = code.replace("{path}", str(canary.readable))
    result = await last_resort.run(code)

    assert result.status in ("refused", "error"), result.value
    assert canary.secret not in f"{result.value}{result.stdout}{result.stderr}"


@pytest.mark.promise("E-2")
async def test_allowed_modules_lead_to_no_other(last_resort: SandboxManager) -> None:
    parts = ["found = []"]
    for name in code_policy.LAST_RESORT_IMPORTS:
        module = sys.modules.get(name) or importlib.import_module(name)
        for inner, value in vars(module).items():
            if not isinstance(value, ModuleType) or inner.startswith("_"):
                continue
            if value.__name__.startswith(f"{name}."):
                continue
            for line in (
                f"from {name} import {inner}",
                f"import {name}\n    {name}.{inner}",
            ):
                parts.append(
                    f"try:\n    {line}\n    found.append({line!r})\n"
                    "except Exception:\n    pass"
                )
    assert len(parts) > 10
    result = await last_resort.run("\n".join([*parts, "found"]))

    assert result.value == []


@pytest.mark.promise("E-2", "R45")
@pytest.mark.parametrize(
    "code",
    [
        "from json.tool import Path\n{use}",
        "from json import tool\nPath = tool.Path\n{use}",
        "import json.tool\nPath = json.tool.Path\n{use}",
        "import json\ntry:\n    from json import tool\nexcept ImportError:\n    pass\n"
        "Path = json.tool.Path\n{use}",
        "import statistics\nPath = statistics.json.tool.Path\n{use}",
    ],
)
async def test_a_module_below_an_allowed_one_is_not_allowed(
    last_resort: SandboxManager, canary: Canary, code: str
) -> None:
    use = f"Path({str(canary.readable)!r}).read_text()"
    result = await last_resort.run(code.format(use=use))

    assert result.status in ("refused", "error")
    assert canary.secret not in f"{result.value}{result.stdout}{result.stderr}"
    kept = await last_resort.run(
        "import collections.abc\nfrom collections.abc import Mapping\n"
        "collections.abc.Mapping is Mapping"
    )
    assert kept.value is True


@pytest.mark.promise("E-40")
async def test_the_last_resort_says_what_it_is(last_resort: SandboxManager) -> None:
    result = await last_resort.run("6 * 7")

    assert result.value == 42
    assert result.isolation is not None
    assert result.isolation.level == "process"
    assert len(last_resort.notices) == 1


@pytest.mark.promise("E-10")
async def test_no_object_of_a_program_lives_in_the_host(
    sandbox: SandboxManager,
) -> None:
    code = """
import os
class Bomb:
    def __repr__(self): return f"made in {os.getpid()}"
    def __reduce__(self): return os.system, ("touch /tmp/reduced",)
    def __del__(self): os.write(1, b"deleted")
    def __eq__(self, other): raise SystemExit
    __hash__ = None
Bomb()
"""
    modules = set(sys.modules)
    result = await sandbox.run(code)
    gc.collect()

    assert isinstance(result.value, OpaqueValue)
    assert (result.value.type, result.value.repr[:8]) == ("Bomb", "made in ")
    assert result.value == OpaqueValue(type="Bomb", repr=result.value.repr)
    assert not {name for name in set(sys.modules) - modules if "main" in name}


@pytest.mark.promise("E-11")
def test_checking_a_source_runs_none_of_it(canary: Canary) -> None:
    touch = f"open({str(canary.touched)!r}, 'w')"
    source = f"@{touch}.write\ndef f(x={touch}, *, y: {touch} = 1): pass\n{touch}"
    reasons = code_policy.find_violations(source, CodePolicy())

    assert len(reasons) == 4
    code_policy.compile_restricted(source)


@pytest.mark.promise("E-11")
async def test_a_refused_program_does_not_run(sandbox: SandboxManager) -> None:
    config = sandbox.config.model_copy(update={"code_policy": CodePolicy()})
    async with SandboxManager(config) as manager:
        result = await manager.run("def f(x=print('ran')): pass\nopen('x')")

    assert (result.status, result.stdout) == ("refused", "")
    assert result.reasons == ("line 2: the name 'open' is not allowed",)


BOMBS = {
    "brackets": "(" * 100_000,
    "closed brackets": "[" * 100_000 + "]" * 100_000,
    "signs": "-" * 100_000 + "1",
    "sums": "1" + "+1" * 100_000,
    "attributes": "a" + ".a" * 100_000,
    "calls": "f" + "()" * 100_000,
    "nots": "not " * 100_000 + "1",
    "digits": "1" * 500_000,
    "blocks": "\n".join(" " * depth + "if 1:" for depth in range(1000)),
    "nul": "print(1)\0",
}


@pytest.mark.promise("E-12")
@pytest.mark.parametrize("name", BOMBS)
async def test_a_parser_bomb_is_the_programs_own_failure(
    sandbox: SandboxManager, name: str
) -> None:
    result = await sandbox.run(BOMBS[name])

    assert result.status in ("ok", "error", "crashed", "out_of_memory"), result.status
    assert result.usage.wall_ms < 30_000


@pytest.mark.promise("E-12")
@pytest.mark.parametrize("name", BOMBS)
def test_a_parser_bomb_does_not_harm_the_host(name: str) -> None:
    assert code_policy.find_violations(BOMBS[name], CodePolicy()) == ()
    try:
        code_policy.compile_restricted(BOMBS[name])
    except InvalidInputError as error:
        assert "compiled" in error.message


@pytest.mark.promise("E-13")
@pytest.mark.parametrize(
    ("code", "statuses"),
    [
        ("x = 10 ** 10 ** 8\nstr(x)", {"timeout", "error", "out_of_memory"}),
        ("str(10 ** 5000)", {"error"}),
        ("10 ** 5000", {"ok"}),
        ("-(10 ** 4299)", {"ok"}),
    ],
)
async def test_an_integer_bomb_stays_in_the_cell(
    sandbox: SandboxManager, code: str, statuses: set[str]
) -> None:
    seconds = 2.0 if "timeout" in statuses else 60.0
    limits = sandbox.config.limits.model_copy(update={"wall_seconds": seconds})
    result = await sandbox.run(code, limits=limits)

    assert result.status in statuses
    result.model_dump_json()


async def test_the_last_resort_keeps_no_state(last_resort: SandboxManager) -> None:
    async with last_resort.session() as session:
        with pytest.raises(InvalidInputError, match="keeps no state"):
            await session.run("1 + 1")
        assert (await session.run("1 + 1", fresh=True)).value == 2


async def test_a_cell_that_is_cancelled_in_the_making_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    backend = ProcessBackend(SandboxConfig(minimum_isolation="process"))
    with anyio.CancelScope() as scope:

        async def cancel(*_: object) -> None:
            scope.cancel()
            await anyio.sleep_forever()

        monkeypatch.setattr(Channel, "send", cancel)
        await backend.create_cell(Limits())

    assert scope.cancelled_caught
    assert list(tmp_path.iterdir()) == []
