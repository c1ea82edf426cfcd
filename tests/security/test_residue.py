"""A program leaves all that it can; the next one of the same cell finds none of it."""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from toolcell.sandbox import ExecutionResult, SandboxManager

from ..conftest import (
    CONFINED,
    IMAGE,
    BackendRow,
    missing,
    need_shared_memory,
    why_no_docker,
)
from ..support.cells import residue_confined, residue_runner
from ..support.cells.changed_bundle import changed_bundle
from ..support.cells.residue_kinds import KINDS, Kind
from ..support.ordinary_user import ORDINARY_USER, SYSTEM_PYTHON

# The first test of a place waits for the programs of all kinds.
pytestmark = pytest.mark.timeout(1800)

_SLATE = "supervisor.clean_slate"
WITHOUT = {
    "scratch": [
        [_SLATE, "scratch.unmount(self._workdir)\n", "\n"],
        [_SLATE, "scratch.mount(self._workdir, self._disk_mib, self._uid)\n", "\n"],
    ],
    "ipc": [["supervisor.zygote", "linux.unshare(linux.CLONE_NEWIPC)", "pass"]],
    "net": [
        [
            "supervisor.network_namespace",
            "if found == self._before or _own(found) == _own(self._before):",
            "if True:",
        ]
    ],
    "pid": [[_SLATE, 'os.pwrite(self._last_pid, b"1", 0)', ""]],
}
"""What makes each wall, taken out of the code of cells."""

WITHOUT_IN_CONTAINERS = {
    "scratch": [[_SLATE, "self._replace(until)", ""]],
    "closed": [["program.main", 'lasting=request["again"]', ""]],
}
# Queues are closed, and those that are made as files are removed.
WITHOUT_IN_CONTAINERS["queues"] = [*chain(*WITHOUT_IN_CONTAINERS.values())]

# System V objects and queues are refused.
WITHOUT_CONFINED = {"scratch": WITHOUT_IN_CONTAINERS["scratch"]}

# A machine under load makes cells new too late, and no program would have a second one.
PATIENT = ["wire.contract", "RENEWAL_SECONDS = 0.05", "RENEWAL_SECONDS = 60.0"]

LEFT = [kind for kind in KINDS if kind.wall != "refused"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where both programs of each pair run."""

    user: int | None = None
    runtime: str = ""
    confined: bool = False

    @property
    def config(self) -> dict[str, Any]:
        if self.runtime:
            cells = {"backend": "docker", "image": IMAGE, "runtime": self.runtime}
            return {**cells, "programs_per_cell": 1000}
        cells = {"backend": "subprocess", "python": SYSTEM_PYTHON}
        if self.confined:
            cells["strongest_isolation"] = "confined"
        return {**cells, "programs_per_cell": 2}

    def require(self) -> None:
        """Skip, or fail, where there is no such place."""
        if self.runtime and (why := why_no_docker(self.runtime)):
            missing(why)
        if self.user is not None and os.getuid() != 0:
            pytest.skip("the other rows are an ordinary user's already")
        if not self.runtime and not Path(SYSTEM_PYTHON).exists():
            missing(f"there is no {SYSTEM_PYTHON}")

    def has(self, kind: Kind) -> bool:
        if self.confined:
            return kind.name not in chain(*residue_confined.NOT_THERE.values())
        return self.runtime != "runsc" or kind.on_gvisor

    def meant(self, code: str) -> str:
        """Return a program of a kind as it is written here."""
        return residue_confined.with_its_folders(code) if self.confined else code

    def require_kind(self, kind: Kind) -> None:
        """Skip a kind that this place does not have, or does not show."""
        if not self.has(kind):
            pytest.skip("cells of this place do not have it, or do not show it")

    def closes(self, kind: Kind) -> bool:
        """Return True if a program here may be refused what it would leave."""
        if self.runtime or self.confined:
            return kind.closed_in_containers
        return kind.name == "a POSIX queue"

    def wall_of(self, kind: Kind) -> str:
        """Return the wall of a kind here: of `WITHOUT`, or another."""
        if self.confined:
            return "refused" if kind.wall == "ipc" else kind.wall
        if not self.runtime:
            # Landlock refuses queues before they meet their namespace.
            return "landlock" if kind.name == "a POSIX queue" else kind.wall
        if kind.stays_in_containers:
            return "none"
        if kind.name == "a POSIX queue":
            return "queues"
        return "closed" if kind.wall in ("ipc", "net") else kind.wall


@functools.cache
def found(place: Place, without: str = "") -> dict[str, dict[str, Any]]:
    """Return what the second program of each pair found, by name."""
    place.require()
    kinds = [
        kind
        for kind in KINDS
        if place.has(kind) and without in ("", place.wall_of(kind))
    ]
    walls = WITHOUT_CONFINED if place.confined else WITHOUT
    changes = (WITHOUT_IN_CONTAINERS if place.runtime else walls).get(without, [])
    request = {
        "user": place.user,
        "config": place.config,
        "bundle": base64.b64encode(changed_bundle([PATIENT, *changes])).decode(),
        "tries": 10 if place.runtime else 20,
        "apart": bool(without) or not place.runtime,
        "kinds": {
            kind.name: (place.meant(kind.leave), place.meant(kind.look))
            for kind in kinds
        },
    }
    done = subprocess.run(
        [sys.executable, residue_runner.__file__],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
        timeout=1700,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return answer


ROOT = Place()
RUNC = pytest.param(Place(runtime="runc"), id="runc", marks=pytest.mark.docker)
RUNSC = pytest.param(
    Place(runtime="runsc"),
    id="runsc",
    marks=[pytest.mark.docker, pytest.mark.runsc, pytest.mark.full],
)
CONFINED_PLACES = [
    pytest.param(Place(confined=True), id="confined"),
    pytest.param(Place(confined=True, user=ORDINARY_USER), id="confined-ordinary"),
]
PLACES = [
    pytest.param(ROOT, id="root"),
    pytest.param(Place(user=ORDINARY_USER), id="ordinary"),
    *CONFINED_PLACES,
    RUNC,
    RUNSC,
]
ROWS = [pytest.param(kind, id=kind.name) for kind in KINDS]


@pytest.mark.promise("E-79", "E-81")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.promise("R69")
def test_nothing_is_left_for_the_next_program(kind: Kind, place: Place) -> None:
    place.require_kind(kind)
    row = found(place)[kind.name]

    if place.runtime and kind.stays_in_containers:
        # Numbers that only count: docs/security.md names them.
        assert (row["leave"][0], row["look"][0]) == ("ok", "ok"), row
        return
    if place.closes(kind):
        assert row["leave"][0] == "error" or row["found"] is False, row
        return
    assert row["leave"][0] == "ok", row
    assert row["look"][0] == "ok", row
    assert row["found"] is False
    # To remove this file by file takes a container longer than it has.
    slow = place.runtime and kind.name == "folders in folders"
    if kind.ends_cell is not None and not slow:
        assert row["reused"] is not kind.ends_cell


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ROWS)
def test_each_look_finds_what_is_there(kind: Kind, place: Place) -> None:
    place.require_kind(kind)
    assert found(place)[kind.name]["whole"] is (kind.wall != "refused")


@pytest.mark.parametrize("wall", WITHOUT)
def test_without_its_wall_each_kind_is_found(wall: str) -> None:
    rows = found(ROOT, wall)

    assert [name for name, row in rows.items() if not row["found"]] == []


@pytest.mark.parametrize("place", [RUNC, RUNSC])
@pytest.mark.parametrize("wall", WITHOUT_IN_CONTAINERS)
def test_without_its_wall_each_kind_is_found_in_containers(
    wall: str, place: Place
) -> None:
    rows = found(place, wall)

    assert [name for name, row in rows.items() if not row["found"]] == []


@pytest.mark.parametrize("place", CONFINED_PLACES)
@pytest.mark.parametrize("wall", WITHOUT_CONFINED)
def test_without_its_wall_each_kind_is_found_in_confined_cells(
    wall: str, place: Place
) -> None:
    rows = found(place, wall)

    assert [name for name, row in rows.items() if not row["found"]] == []


def test_there_are_enough_kinds() -> None:
    names = {kind.name for kind in KINDS}
    assert {*chain(*residue_confined.NOT_THERE.values())} < names
    assert len({kind.name for kind in LEFT}) == len(LEFT) >= 40


ROTATION = bytes((i + 1) % 256 for i in range(256))
LOOK_AT_ALL_MEMORY = """
import os
def marks():
    table = bytes((i + 1) % 256 for i in range(256))
    # No text of this program has what it looks for: it is written one letter on.
    wanted = [bytes(each) for each in WANTED]
    found = set()
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps.read().splitlines():
            span, rights = line.split()[:2]
            start, end = (int(each, 16) for each in span.split("-"))
            if rights[0] != "r" or line.endswith(("[vvar]", "[vsyscall]")):
                continue
            for at in range(start, end, 1 << 20):
                try:
                    memory.seek(at)
                    piece = memory.read(min((1 << 20) + 64, end - at))
                except (OSError, ValueError, OverflowError):
                    continue
                turned = piece.translate(table)
                found |= {n for n, each in enumerate(wanted) if each in turned}
    return sorted(found)
marks()
"""
MARKED = ("code", "inputs", "value", "stdout", "stderr", "stdin", "file", "environment")


def mark_of(name: str) -> str:
    return f"residue of the {name} of a program"


def look_for_marks(marked: tuple[str, ...] = MARKED) -> str:
    wanted = [list(mark_of(name).encode().translate(ROTATION)) for name in marked]
    return LOOK_AT_ALL_MEMORY.replace("WANTED", repr(wanted))


LEAVE_MARKS = f"""
import os, sys
code = {mark_of("code")!r}
whole = {{name: " ".join(words) for name, words in parts.items()}}
os.environ["LEFT"] = whole["environment"]
print(whole["stdout"])
print(whole["stderr"], file=sys.stderr)
open("left", "w").write(whole["file"])
read = sys.stdin.read()
whole["value"]
"""


def given_marks(marked: tuple[str, ...] = MARKED) -> dict[str, Any]:
    """Return what a program is given to leave its marks."""
    given: dict[str, Any] = {
        "inputs": {
            "parts": {name: mark_of(name).split() for name in marked},
            "given": mark_of("inputs") + " " * 20_000,
        }
    }
    if "stdin" in marked:
        given["stdin"] = mark_of("stdin").encode()
    if "secret" in marked:
        given["secrets"] = {"GIVEN": SecretStr(mark_of("secret"))}
    return given


async def after_marks(
    sandbox: SandboxManager, look: str, given: dict[str, Any], **options: Any
) -> ExecutionResult:
    """Return the result of a program in the cell of one that has left its marks."""
    for attempt in range(20):
        agent = f"agent {attempt}"
        first = await sandbox.run(LEAVE_MARKS, agent_id=agent, **given)
        second = await sandbox.run(look, agent_id=agent, **options)
        assert (first.status, second.status) == ("ok", "ok"), (first, second)
        # A slow machine may not have made the cell new in time.
        if second.isolation is not None and second.isolation.reused:
            return second
    raise AssertionError("no cell was reused")


def fork_from_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have programs forked from the process that reads what the host sends."""
    zygote = "self._zygote is not None:\n            child"
    code = changed_bundle(
        [["supervisor.supervisor", zygote, "False:\n            child"]]
    )
    for module in (
        "launcher_start.bundle",
        "launcher_start.compiled_bundle",
        "docker.bundle",
    ):
        monkeypatch.setattr(f"toolcell.sandbox.backends.{module}", lambda: code)


@pytest.mark.promise("E-79", "R52")
@pytest.mark.anyio
@pytest.mark.parametrize("hidden", [True, False])
async def test_no_memory_of_the_next_program_has_a_word_of_the_last_one(
    backend: BackendRow, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hidden:
        fork_from_the_supervisor(monkeypatch)
    look, given = look_for_marks(), given_marks()
    config = backend.config(programs_per_cell=1000)
    async with SandboxManager(config) as sandbox:
        second = await after_marks(sandbox, look, given)
        whole = await sandbox.run(f"{LEAVE_MARKS}{look}", **given)

    assert whole.value == list(range(len(MARKED)))
    assert bool(second.value) is not hidden, second.value


@pytest.mark.promise("E-79")
@pytest.mark.anyio
async def test_what_is_left_in_shared_memory_ends_a_confined_cell() -> None:
    left = Path("/dev/shm", f"toolcell-test-{os.getpid()}")
    need_shared_memory()
    try:
        async with SandboxManager(CONFINED.config(programs_per_cell=1000)) as sandbox:
            await after_marks(sandbox, "1", given_marks())
            first = await sandbox.run(f"open('{left}', 'w')", agent_id="a")
            second = await sandbox.run("1", agent_id="a")
        assert (first.status, second.status) == ("ok", "ok"), (first, second)
        assert first.isolation is not None and second.isolation is not None
        assert not second.isolation.reused
        assert left.exists() is ("own_uid" not in first.isolation.layers)
    finally:
        left.unlink(missing_ok=True)


STOPS = """
import os, signal
print(f"stops {os.getpid()}.", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


class SearchedWhenItStops:
    """Takes the output of programs in; searches their memory, and has them go on."""

    def __init__(self) -> None:
        self._said = b""
        self.found: list[int] | None = None

    def __call__(self, stream: str, data: bytes) -> None:
        self._said += data
        stops = re.search(rb"stops (\d+)\.", self._said)
        if stops is None:
            return
        self._said = b""
        pid = int(stops[1])
        folder = f"/proc/{pid}"
        until = time.monotonic() + 60
        while " T " not in Path(folder, "stat").read_text():
            assert time.monotonic() < until, "the program does not stop"
            time.sleep(0.001)
        code = look_for_marks().removesuffix("marks()\n")
        scope: dict[str, Any] = {}
        exec(code.replace("/proc/self", folder), scope)
        try:
            self.found = scope["marks"]()
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.promise("E-79", "R52")
@pytest.mark.anyio
@pytest.mark.parametrize("hidden", [True, False])
async def test_no_memory_of_the_next_confined_program_has_a_word_of_the_last_one(
    hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot look at its own memory, so this machine does."""
    if not hidden:
        fork_from_the_supervisor(monkeypatch)
    given, search = given_marks(), SearchedWhenItStops()
    async with SandboxManager(CONFINED.config(programs_per_cell=1000)) as sandbox:
        second = await after_marks(sandbox, STOPS, given, on_output=search)
        found = search.found
        await sandbox.run(f"{LEAVE_MARKS}{STOPS}", on_output=search, **given)

    assert second.isolation is not None and second.isolation.level == "confined"
    assert search.found == list(range(len(MARKED)))
    assert found is not None
    assert bool(found) is not hidden, found


@pytest.mark.promise("P-33", "R52")
@pytest.mark.anyio
@pytest.mark.parametrize("hidden", [True, False])
async def test_no_memory_of_a_fresh_run_has_a_word_of_its_session(
    backend: BackendRow, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hidden:
        fork_from_the_supervisor(monkeypatch)
    marked = (*(each for each in MARKED if each != "stdin"), "secret")
    look, given = look_for_marks(marked), given_marks(marked)
    async with (
        SandboxManager(backend.config()) as sandbox,
        sandbox.session() as session,
    ):
        await session.write_file("given", mark_of("file"))
        kept = await session.run(LEAVE_MARKS, **given)
        left = await session.run(LEAVE_MARKS, **given, fresh=True)
        fresh = await session.run(look, fresh=True)
        context = await (await session.context()).run(look)
        same = await session.run(look)
        fork = await (await session.fork()).run(look)

    results = (kept, left, fresh, context, same, fork)
    assert [result.status for result in results] == ["ok"] * len(results), results
    # Those of one line share their state.
    assert same.value == fork.value == list(range(len(marked)))
    assert bool(fresh.value) is not hidden, fresh.value
    assert bool(context.value) is not hidden, context.value
