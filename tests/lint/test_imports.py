"""Who may import whom."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from ..support.paths import ROOT
from ..support.project.modules import CELL, dotted, fresh_python, modules_of

pytestmark = [pytest.mark.lint, pytest.mark.timeout(600)]

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
    "providers": {"tools", "sandbox", "guard", "core"},
}
"""Each room and the rooms whose public face it may import (DESIGN, section 1)."""

INTERNAL = (
    "core.addresses",
    "core.detached",
    "core.egress",
    "core.event_loop",
    "core.gauges",
    "core.http_exchange",
    "core.lazy_face",
    "core.models",
    "core.paths",
    "core.redis_client",
    "core.secrets",
    "core.storage.",
    "core.text.",
)
"""Modules that every room may import, and no user."""

ROOM_MODULES = modules_of(*ROOMS)
CELL_MODULES = modules_of("sandbox/cell")


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
        elif rest.removesuffix(".spi") not in ROOMS[room]:
            wrong.append(f"line {line}: {room} must not import toolcell.{rest}")
        else:
            face = importlib.import_module(module).__all__
            wrong += [f"line {line}: {n} is not public" for n in names if n not in face]
    return wrong


def offenders(paths: list[Path], rule: Callable[[Path], Iterable[str]]) -> list[str]:
    """Return what a rule says of each file."""
    return [
        f"{path.relative_to(ROOT)}: {said}" for path in paths for said in rule(path)
    ]


def test_every_room_is_known_and_drawn() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}

    assert packages <= set(ROOMS)
    stale = [room for room in packages if find_spec(f"toolcell.{room}") is None]
    assert not stale, f"not installed: {stale}; run .venv/bin/pip install -e . again"
    assert {"core", "sandbox", "host"} <= packages
    assert not ROOMS["core"]
    assert "guard" not in ROOMS["sandbox"]
    assert "sandbox" not in ROOMS["guard"]


def test_imports_follow_the_arrows() -> None:
    assert offenders(ROOM_MODULES, forbidden_imports) == []


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


def test_a_cell_needs_only_the_standard_library() -> None:
    def foreign(path: Path) -> Iterator[str]:
        for line, module, level, _ in imports(path):
            if level > len(path.relative_to(CELL).parts):
                yield f"line {line}: a relative import leaves the cell"
            elif not level and module.partition(".")[0] not in sys.stdlib_module_names:
                yield f"line {line}: {module}"

    assert offenders(CELL_MODULES, foreign) == []


def test_the_host_shares_little_with_cells() -> None:
    used = {
        f"{module}.{name}" if module in ("cell.wire", "cell.kernel") else module
        for path in modules_of("sandbox")
        if CELL not in path.parents
        for _, module, level, names in imports(path)
        if level and module.startswith("cell.")
        for name in names
    }

    assert used == {
        "cell.kernel.bpf",
        "cell.kernel.calls",
        "cell.kernel.gvisor",
        "cell.kernel.seccomp",
        "cell.notebook.cells",
        *(name for name in used if name.startswith("cell.wire.")),
    }


def test_a_cell_is_written_for_python_3_8() -> None:
    def newer(path: Path) -> Iterator[str]:
        try:
            ast.parse(path.read_text(), feature_version=(3, 8))
        except SyntaxError as error:
            yield str(error)

    assert offenders(CELL_MODULES, newer) == []


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
