"""Who may import whom, what a room shows, and how large things may grow."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TypeGuard

import pytest

from toolcell.sandbox import SandboxConfig, SandboxManager

from ..support.paths import ROOT, TESTS
from ..support.project.public_names import FACES

ROOMS: dict[str, set[str]] = {
    "core": set(),
    "sandbox": {"core"},
    "cluster": {"sandbox", "core"},
    "guard": {"core"},
    "tools": {"sandbox", "guard", "core"},
    "flow": {"tools", "guard", "core"},
    "host": {
        "flow",
        "tools",
        "tools.builtin",
        "cluster",
        "sandbox",
        "guard",
        "core",
    },
    "images": set(),
    "providers": {"sandbox", "guard", "core"},
}
"""Each room and the rooms whose public face it may import (DESIGN, section 1)."""

INTERNAL = (
    "core.addresses",
    "core.detached",
    "core.egress",
    "core.gauges",
    "core.http_exchange",
    "core.lazy_face",
    "core.models",
    "core.redis_client",
    "core.storage.",
    "core.task_groups",
    "core.text.",
)
"""Modules that every room may import, and no user."""

BUILT = sorted(room for room in ROOMS if (ROOT / room / "__init__.py").exists())
CELL = ROOT / "sandbox" / "cell"
MAX_FILE_LINES = 400
MAX_TEST_LINES = 500
"""Of a file of tests or benchmarks."""

MAX_FUNCTION_LINES = 60
HEAVY = ("docker", "requests", "rich", "typer", "RestrictedPython", "IPython", "mcp")
CURRENT = f"{sys.version_info[0]}.{sys.version_info[1]}"
PYTHONS = ("3.8", "3.9", "3.10", CURRENT)


def modules_of(*folders: str) -> list[Path]:
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    )


def named(paths: list[Path]) -> list[object]:
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in paths]


ROOM_MODULES = modules_of(*ROOMS)
CELL_MODULES = modules_of("sandbox/cell")
OWN_MODULES = modules_of(*ROOMS, "benchmarks", "tests")


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in ("toolcell", *parts) if part != "__init__")


def imports(path: Path) -> Iterator[tuple[int, str, int, list[str]]]:
    """Yield line, module, level and names of each import, at any depth of the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, 0, []
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            yield node.lineno, node.module or "", node.level, names


def forbidden_imports(path: Path) -> list[str]:
    """Return what a module of a room imports against the rules."""
    room = path.relative_to(ROOT).parts[0]
    depth = len(path.relative_to(ROOT).parts) - 1
    wrong = []
    for line, module, level, names in imports(path):
        top, _, rest = module.partition(".")
        if level > depth:
            wrong.append(f"line {line}: a relative import leaves the room")
        elif level or top not in {"toolcell", *ROOMS}:
            continue
        elif top != "toolcell" or not names:
            wrong.append(f"line {line}: not `from toolcell.<room> import name`")
        elif rest == room:
            wrong.append(f"line {line}: inside a room imports are relative")
        elif rest.startswith(INTERNAL) and "core" in ROOMS[room]:
            continue
        elif rest not in ROOMS[room]:
            wrong.append(f"line {line}: {room} must not import toolcell.{rest}")
        else:
            face = importlib.import_module(module).__all__
            wrong += [f"line {line}: {n} is not public" for n in names if n not in face]
    return wrong


def test_every_room_is_known_and_drawn() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}

    assert packages <= set(ROOMS)
    stale = [room for room in BUILT if find_spec(f"toolcell.{room}") is None]
    assert not stale, f"not installed: {stale}; run .venv/bin/pip install -e . again"
    assert {"core", "sandbox", "host"} <= packages
    assert not ROOMS["core"]
    assert "guard" not in ROOMS["sandbox"]
    assert "sandbox" not in ROOMS["guard"]


@pytest.mark.parametrize("path", named(ROOM_MODULES))
def test_imports_follow_the_arrows(path: Path) -> None:
    assert forbidden_imports(path) == []


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("from toolcell.host import main", "core must not import toolcell.host"),
        ("import toolcell.sandbox", "not `from toolcell.<room> import name`"),
        ("def f():\n    from sandbox import run", "not `from toolcell.<room>"),
        ("from toolcell.core import Role", "inside a room imports are relative"),
        ("from ..sandbox import run", "leaves the room"),
    ],
)
def test_a_forbidden_import_is_found(
    source: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self: source)

    [found] = forbidden_imports(ROOT / "core" / "new.py")
    assert reason in found


def test_a_private_name_of_another_room_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = "from toolcell.sandbox import SandboxManager, Pool"
    monkeypatch.setattr(Path, "read_text", lambda self: source)

    found = forbidden_imports(ROOT / "host" / "new.py")
    assert found == ["line 1: Pool is not public"]


@pytest.mark.parametrize("path", named(CELL_MODULES))
def test_a_cell_needs_only_the_standard_library(path: Path) -> None:
    for line, module, level, _ in imports(path):
        if level == 0:
            top = module.partition(".")[0]
            assert top in sys.stdlib_module_names, f"line {line}"
        else:
            assert level <= len(path.relative_to(CELL).parts), f"line {line}"


def test_the_host_shares_only_the_wire_and_the_filter_with_cells() -> None:
    used = {
        f"{module}.{name}" if module.endswith("cell.wire") else module
        for path in modules_of("sandbox")
        if CELL not in path.parents
        for _, module, level, names in imports(path)
        if level and module.startswith("cell.")
        for name in names
    }

    assert used == {
        "cell.kernel.bpf",
        "cell.kernel.seccomp",
        *(name for name in used if name.startswith("cell.wire.")),
    }


@pytest.mark.parametrize("path", named(CELL_MODULES))
def test_a_cell_is_written_for_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))


def interpreter(version: str) -> str:
    """Return an interpreter that really is of this version; skip without one."""
    if version == CURRENT:
        return sys.executable
    for name in (f"python{version}", *pyenv_interpreters(version)):
        found = shutil.which(name)
        if found is None:
            continue
        ask = [found, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        said = subprocess.run(ask, capture_output=True, text=True, check=False)
        if said.stdout.strip() == version:
            return found
    # Not `missing`: few machines, CI's included, have interpreters this old.
    pytest.skip(f"there is no python{version}")


def pyenv_interpreters(version: str) -> list[str]:
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return [str(path) for path in root.glob(f"versions/{version}.*/bin/python")]


@pytest.mark.parametrize("version", PYTHONS)
def test_a_cell_can_be_imported_by_every_python(version: str) -> None:
    script = """
import importlib, sys, warnings
warnings.simplefilter("error")
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
"""
    names = [
        ".".join(path.relative_to(CELL.parent).with_suffix("").parts)
        for path in CELL_MODULES
        if path.stem != "__init__"
    ]
    done = subprocess.run(
        [interpreter(version), "-I", "-c", script, str(CELL.parent), *names],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.anyio
@pytest.mark.parametrize("version", PYTHONS)
async def test_a_program_runs_under_every_python(version: str) -> None:
    python = interpreter(version)
    config = SandboxConfig(backend="subprocess", python=python)
    async with SandboxManager(config) as sandbox:
        result = await sandbox.run(
            "import sys\nfrom IPython.display import HTML\ndisplay(HTML('x'))\n"
            "'%d.%d' % sys.version_info[:2]"
        )

    assert (result.status, result.value) == ("ok", version), result.stderr
    assert [each.text("text/html") for each in result.outputs] == ["x"]


def test_a_cell_names_what_every_python_has() -> None:
    """Names of the standard library that came after 3.8 and are easily reached for."""
    later = {
        ("os", "pidfd_open"),
        ("os", "waitid_pidfd"),
        ("os", "unshare"),
        ("os", "setns"),
        ("os", "memfd_secret"),
        ("socket", "send_fds"),
        ("socket", "recv_fds"),
        ("signal", "pidfd_send_signal"),
        ("functools", "cache"),
        ("itertools", "pairwise"),
        ("itertools", "batched"),
        ("math", "lcm"),
        ("ast", "unparse"),
        ("sys", "orig_argv"),
        ("sys", "stdlib_module_names"),
        ("asyncio", "to_thread"),
    }
    methods = {"removeprefix", "removesuffix", "bit_count"}
    builtins = {"aiter", "anext", "ExceptionGroup", "BaseExceptionGroup"}
    found = []
    for path in CELL_MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                owner = node.value.id if isinstance(node.value, ast.Name) else ""
                if node.attr in methods or (owner, node.attr) in later:
                    found.append(f"{path.name}:{node.lineno} {owner}.{node.attr}")
            elif isinstance(node, ast.Name) and node.id in builtins:
                found.append(f"{path.name}:{node.lineno} {node.id}")
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
                if isinstance(node.left, ast.Dict) or isinstance(node.right, ast.Dict):
                    found.append(f"{path.name}:{node.lineno} dict | dict")
    assert found == []


@pytest.mark.parametrize("room", BUILT)
def test_a_face_is_sorted_complete_and_nothing_more(room: str) -> None:
    face = importlib.import_module(f"toolcell.{room}")
    shown = vars(face).get("__all__", [])
    for name in shown:
        getattr(face, name)  # some are loaded when they are asked for
    assert face.__file__, "the installed package is stale: pip install -e . again"
    public = {
        name
        for name, value in vars(face).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }

    assert list(shown) == sorted(set(shown))
    assert public == set(shown)


@pytest.mark.parametrize("room", BUILT)
def test_the_public_face_is_small_and_known_lc_01(room: str) -> None:
    """Adding a name is a decision: others will rely on it."""
    shown = vars(importlib.import_module(f"toolcell.{room}")).get("__all__", [])

    assert set(shown) == set(FACES[room].split())


def test_no_public_name_is_a_dead_declaration_rl_22() -> None:
    """A test names it, or code beyond its definition, whose tests then need it."""
    own = Path(__file__)
    tests = [path for path in TESTS.rglob("*.py") if path != own]
    modules = [path for path in modules_of(*ROOMS) if path.name != "__init__.py"]
    tested, spoken = (
        Counter(word for path in paths for word in re.findall(r"\w+", path.read_text()))
        for paths in (tests, modules)
    )
    names = " ".join(FACES.values()).split()

    assert [name for name in names if not tested[name] and spoken[name] < 2] == []


@pytest.mark.parametrize("room", BUILT)
def test_a_face_holds_only_imports(room: str) -> None:
    path = ROOT / room / "__init__.py"
    allowed = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign)
    nodes = [
        inner
        for node in ast.parse(path.read_text()).body
        for inner in (node.body if is_for_types(node) else [node])
    ]

    assert all(isinstance(node, allowed) for node in nodes)
    assigned = [ast.unparse(n.targets[0]) for n in nodes if isinstance(n, ast.Assign)]
    assert assigned in ([], ["__all__"], ["__all__", "__getattr__"])


def is_for_types(node: ast.stmt) -> TypeGuard[ast.If]:
    """Say whether it holds the imports of a lazy face, which type checkers read."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "typing.TYPE_CHECKING"


@pytest.mark.parametrize("path", named(OWN_MODULES))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()

    in_room = path.relative_to(ROOT).parts[0] in ROOMS
    assert len(text.splitlines()) <= (MAX_FILE_LINES if in_room else MAX_TEST_LINES)
    too_long = [
        f"{node.name}: {lines}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := body_lines(node)) > MAX_FUNCTION_LINES
    ]
    assert too_long == []


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its decorators and docstring."""
    first = node.body[0]
    lines = (node.end_lineno or 0) - node.lineno + 1
    if ast.get_docstring(node, clean=False) is not None:
        lines -= (first.end_lineno or 0) - first.lineno + 1
    return lines


def fresh_python(script: str, *arguments: str) -> str:
    """Run a script in a clean interpreter, away from the checkout."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_can_be_imported_first() -> None:
    names = [
        dotted(path)
        for path in ROOM_MODULES
        if path.name != "__main__.py"
        and not path.is_relative_to(CELL)
        # What these adapt to is in environments of its own.
        and not path.is_relative_to(ROOT / "providers")
    ]
    # Libraries are imported once for all. Then each module has a fork of its own, so
    # that none relies on another's import; its room's face comes first in any case.
    script = """
import contextlib, importlib, os, sys
read_fd, write_fd = os.pipe()
if os.fork() == 0:
    for name in sys.argv[1:]:
        importlib.import_module(name)
    found = [name for name in sys.modules if name.partition(".")[0] != "toolcell"]
    with open(write_fd, "w") as pipe:
        pipe.write(" ".join(found))
    os._exit(0)
os.close(write_fd)
with open(read_fd) as pipe:
    libraries = pipe.read().split()
assert os.wait()[1] == 0 and libraries
for name in libraries:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
import toolcell.host, toolcell.sandbox, toolcell.tools.builtin
for name in sys.argv[1:]:
    if os.fork() == 0:
        importlib.import_module(name)
        os._exit(0)
    if os.wait()[1] != 0:
        print(name, flush=True)
"""
    assert fresh_python(script, *names) == ""


@pytest.mark.parametrize("room", ["core", "sandbox", "tools", "flow"])
def test_importing_a_room_is_light_rg_42(room: str) -> None:
    script = f"import sys, toolcell.{room}; print(*sys.modules, sep='\\n')"
    loaded = set(fresh_python(script).splitlines())

    assert f"toolcell.{room}" in loaded
    assert not {name.partition(".")[0] for name in loaded} & set(HEAVY)
    if room == "core":
        assert not {name for name in loaded if name.startswith("toolcell.sandbox")}
        assert "anyio" not in loaded


def test_asking_for_help_is_light_rg_42() -> None:
    script = """
import sys
from toolcell.host import main
sys.argv = ["toolcell", "--version-of-nothing"]
try:
    main()
except SystemExit:
    pass
print(*sys.modules, sep="\\n")
"""
    loaded = set(fresh_python(script).splitlines())

    assert not loaded & {"docker", "requests", "RestrictedPython", "toolcell.sandbox"}
