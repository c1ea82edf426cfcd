"""A program leaves all that it can; the next one of the same cell finds none of it."""

from __future__ import annotations

import base64
import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from toolcell.sandbox import SandboxManager

from ..conftest import IMAGE, BackendRow, missing, why_no_docker
from ..support.cells import residue_runner
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
            "used = self._read() != self._before",
            "used = False",
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

# A machine under load makes cells new too late, and no program would have a second one.
PATIENT = ["wire.contract", "RENEWAL_SECONDS = 0.05", "RENEWAL_SECONDS = 60.0"]

LEFT = [kind for kind in KINDS if kind.wall != "refused"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where both programs of each pair run."""

    user: int | None = None
    runtime: str = ""

    @property
    def config(self) -> dict[str, Any]:
        if self.runtime:
            cells = {"backend": "docker", "image": IMAGE, "runtime": self.runtime}
            return {**cells, "programs_per_cell": 1000}
        cells = {"backend": "subprocess", "python": SYSTEM_PYTHON}
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
        return self.runtime != "runsc" or kind.on_gvisor

    def require_kind(self, kind: Kind) -> None:
        """Skip a kind that this place does not have, or does not show."""
        if not self.has(kind):
            pytest.skip("gVisor does not have it, or does not show it")

    def closes(self, kind: Kind) -> bool:
        """Return True if a program here may be refused what it would leave."""
        return (
            kind.closed_in_containers if self.runtime else kind.name == "a POSIX queue"
        )

    def wall_of(self, kind: Kind) -> str:
        """Return the wall of a kind here: of `WITHOUT`, or another."""
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
    changes = (WITHOUT_IN_CONTAINERS if place.runtime else WITHOUT).get(without, [])
    request = {
        "user": place.user,
        "config": place.config,
        "bundle": base64.b64encode(changed_bundle([PATIENT, *changes])).decode(),
        "tries": 10 if place.runtime else 20,
        "apart": bool(without) or not place.runtime,
        "kinds": {kind.name: (kind.leave, kind.look) for kind in kinds},
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
    Place(runtime="runsc"), id="runsc", marks=[pytest.mark.docker, pytest.mark.runsc]
)
PLACES = [
    pytest.param(ROOT, id="root"),
    pytest.param(Place(user=ORDINARY_USER), id="ordinary"),
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


def test_there_are_enough_kinds() -> None:
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
    parts = {name: mark_of(name).split() for name in MARKED}
    inputs = {"parts": parts, "given": mark_of("inputs") + " " * 20_000}
    look = look_for_marks()
    config = backend.config(programs_per_cell=1000)
    async with SandboxManager(config) as sandbox:
        for attempt in range(20):
            agent = f"agent {attempt}"
            first = await sandbox.run(
                LEAVE_MARKS,
                inputs=inputs,
                stdin=mark_of("stdin").encode(),
                agent_id=agent,
            )
            second = await sandbox.run(look, agent_id=agent)
            assert (first.status, second.status) == ("ok", "ok"), (first, second)
            # A slow machine may not have made the cell new in time.
            if second.isolation is not None and second.isolation.reused:
                break
        whole = await sandbox.run(
            f"{LEAVE_MARKS}{look}", inputs=inputs, stdin=mark_of("stdin").encode()
        )

    assert second.isolation is not None and second.isolation.reused
    assert whole.value == list(range(len(MARKED)))
    assert bool(second.value) is not hidden, second.value


@pytest.mark.promise("P-33", "R52")
@pytest.mark.anyio
@pytest.mark.parametrize("hidden", [True, False])
async def test_no_memory_of_a_fresh_run_has_a_word_of_its_session(
    backend: BackendRow, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hidden:
        fork_from_the_supervisor(monkeypatch)
    marked = (*(each for each in MARKED if each != "stdin"), "secret")
    given: dict[str, Any] = {
        "inputs": {
            "parts": {name: mark_of(name).split() for name in marked},
            "given": mark_of("inputs") + " " * 20_000,
        },
        "secrets": {"GIVEN": SecretStr(mark_of("secret"))},
    }
    look = look_for_marks(marked)
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
