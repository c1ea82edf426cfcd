"""Inside a room, imports go down: to the same sub-room, or to a lower floor."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from ..support.paths import ROOT, files_of_tests

pytestmark = pytest.mark.lint

FLOORS: dict[str, tuple[str, ...]] = {
    "core": ("text storage",),
    "sandbox": (
        "admin sessions",
        "runs",
        "backends scheduling",
        "packages programs processes",
        "client",
        "network",
        "credentials",
        "results",
        "config",
        "machine",
        "cell",
    ),
    "sandbox/cell": (
        "launcher",
        "supervisor",
        "notifier processes program",
        "notebook",
        "outputs",
        "accounting",
        "workdir",
        "relays",
        "kernel",
        "wire",
    ),
    "cluster": ("membership", "driver node", "directory", "wire"),
    "guard": ("admission", "approvals", "policy stores audit", "values"),
    "tools": (
        "builtin",
        "code",
        "execution",
        "hooks registry mcp_client openapi export stores",
        "external",
        "definition",
    ),
    "flow": (
        "conformance control",
        "steps",
        "execution",
        "graph stores",
        "state",
        "values",
    ),
    "host": (
        "cli",
        "cli/flow cli/guard cli/machine cli/serving",
        "cli/peers cli/tools",
        "cli/peers/worker cli/programs",
        "cli/base",
        "serving",
        "console e2b mcp rest",
        "console/pages e2b/services",
        "console/web e2b/operations",
        "console/accounts e2b/state",
        "e2b/protocol",
        "charts runtime terminal",
        "operator http webhooks",
        "config",
    ),
}
"""The sub-rooms of a room, from the top down. Sub-rooms of one floor know nothing of
each other. Files in the room's own folder are above them all."""

SERVERS = {"console", "e2b", "mcp", "rest"}
"""The servers of a host; `host/serving` opens them."""


def modules() -> dict[str, Path]:
    """Return the file of each module of the rooms, by its name below the root."""
    rooms = [room for room in FLOORS if "/" not in room]
    paths = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    return {module_name(path): path for path in paths}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, text: str, known: Mapping[str, Path]) -> Iterator[str]:
    """Yield what a file imports of its room, for types and inside functions as well."""
    package = path.relative_to(ROOT).parent.parts
    tree = ast.parse(text)
    if any(map(imports_by_name, ast.walk(tree))):
        yield from named_modules(tree, package, known)
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = [*package[: len(package) - node.level + 1], node.module or ""]
        parent = ".".join(part for part in base if part)
        for alias in node.names:
            full = f"{parent}.{alias.name}"
            yield full if full in known else parent


def imports_by_name(node: ast.AST) -> bool:
    """Return True for `import_module(..., __package__)`."""
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("import_module")
        and any(ast.unparse(arg) == "__package__" for arg in node.args)
    )


def named_modules(
    tree: ast.AST, package: tuple[str, ...], known: Mapping[str, Path]
) -> Iterator[str]:
    """Yield the modules of a package that a file names in its texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            full = ".".join((*package, node.value.removeprefix(".")))
            if full in known:
                yield full


@cache
def arrows() -> dict[str, set[str]]:
    known = modules()
    return {
        module: set(imported(path, path.read_text(), known)) - {module}
        for module, path in known.items()
    }


def place(module: str, known: Mapping[str, Path]) -> tuple[str, str]:
    """Return the room whose floors count for a module, and its sub-room there."""
    folder = known[module].relative_to(ROOT).parent.as_posix()
    for room in sorted(FLOORS, key=len, reverse=True):
        if folder == room or folder.startswith(f"{room}/"):
            return room, folder[len(room) + 1 :]
    raise AssertionError(f"{folder} is on no floor")


def depth(room: str, sub_room: str) -> int:
    """Return how far down a sub-room is."""
    [found] = [n for n, names in enumerate(FLOORS[room]) if sub_room in names.split()]
    return found


def upward(source: str, target: str, known: Mapping[str, Path]) -> bool:
    """Return True if an import goes up, or to another sub-room of the same floor."""
    room, mine = place(source, known)
    other, theirs = place(target, known)
    if room != other:
        # A cell and its room: only the room may import.
        return len(other) < len(room)
    if mine == theirs:
        return False
    if not theirs:
        return True
    return bool(mine) and depth(room, theirs) <= depth(room, mine)


def test_every_sub_room_is_on_one_floor() -> None:
    drawn = {
        f"{room}/{name}"
        for room, floors in FLOORS.items()
        for names in floors
        for name in names.split()
    }
    there = {path.parent for path in modules().values()}

    assert {path.relative_to(ROOT).as_posix() for path in there} == drawn | {
        room for room in FLOORS if "/" not in room
    }


def test_imports_go_down() -> None:
    known = modules()

    up = {
        (source, target)
        for source, targets in arrows().items()
        for target in targets
        if upward(source, target, known)
    }
    assert up == set()


def test_servers_and_the_command_line_know_nothing_of_each_other() -> None:
    """What two of them need is in `host/http` or `host/operator`."""
    found = {
        (source, target)
        for source, targets in arrows().items()
        for target in targets
        if (server := server_of(target)) is not None
        and server_of(source) != server
        and not source.startswith("host.serving.")
    }

    assert found == set()


def server_of(module: str) -> str | None:
    room, _, rest = module.partition(".")
    name = rest.partition(".")[0]
    return name if room == "host" and name in SERVERS else None


def test_no_file_imports_itself_in_a_circle() -> None:
    try:
        TopologicalSorter(arrows()).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_an_import_that_goes_up_is_found() -> None:
    known = modules()
    source = ROOT / "sandbox/client/cell.py"
    text = "def f():\n    from ..manager import SandboxManager"

    [found] = imported(source, text, known)
    assert found == "sandbox.manager"
    assert upward("sandbox.client.cell", found, known)
    assert upward("sandbox.cell.wire.frames", "sandbox.client.cell", known)
    assert upward("sandbox.cell.program.main", "sandbox.cell.supervisor.main", known)
    assert not upward("sandbox.client.cell", "sandbox.cell.wire.frames", known)


def test_an_import_by_name_is_found() -> None:
    found = arrows()

    assert {"host.cli.serving.serve", "host.cli.machine.bench"} <= found[
        "host.cli.commands"
    ]


def test_no_test_file_imports_another() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {node.module}"
        for path in files_of_tests()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level
        for names in ((node.module or "").split("."), [a.name for a in node.names])
        if any(name.startswith("test_") for name in names)
    ]

    assert wrong == []


def test_what_a_test_starts_ends_with_it() -> None:
    """`Popen` waits for ever where the test fails; `tests.support.child` does not."""
    started = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in files_of_tests()
        if path.name != "test_container.py"  # its functions run in cells
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Popen")
    ]

    assert started == []
