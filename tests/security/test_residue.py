"""A program leaves all that it can; the next one of the same cell finds none of it."""

from __future__ import annotations

import base64
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..conftest import missing
from ..support.cells import residue_runner
from ..support.cells.changed_bundle import changed_bundle
from ..support.cells.residue_kinds import KINDS, Kind
from ..support.ordinary_user import ORDINARY_USER, SYSTEM_PYTHON

_SLATE = "supervisor.clean_slate"
_UNSHARE = "linux.unshare(linux.CLONE_NEWIPC | linux.CLONE_NEWNET)"
WITHOUT = {
    "scratch": [
        [_SLATE, "scratch.unmount(self._workdir)\n", "\n"],
        [_SLATE, "scratch.mount(self._workdir, self._disk_mb, self._uid)\n", "\n"],
    ],
    "ipc": [[_SLATE, _UNSHARE, "linux.unshare(linux.CLONE_NEWNET)"]],
    "net": [[_SLATE, _UNSHARE, "linux.unshare(linux.CLONE_NEWIPC)"]],
    "pid": [[_SLATE, 'os.pwrite(self._last_pid, b"1", 0)', ""]],
}
"""What makes each wall, taken out of the code of cells."""

LEFT = [kind for kind in KINDS if kind.wall != "refused"]


@functools.cache
def found(user: int | None, without: str = "") -> dict[str, dict[str, Any]]:
    """Return what the second program of each pair found, by name."""
    if user is not None and os.getuid() != 0:
        pytest.skip("the other rows are an ordinary user's already")
    if not Path(SYSTEM_PYTHON).exists():
        missing(f"there is no {SYSTEM_PYTHON}")
    kinds = [kind for kind in KINDS if without in ("", kind.wall)]
    request = {
        "user": user,
        "python": SYSTEM_PYTHON,
        "bundle": base64.b64encode(changed_bundle(WITHOUT[without])).decode()
        if without
        else "",
        "kinds": {kind.name: (kind.leave, kind.look) for kind in kinds},
    }
    done = subprocess.run(
        [sys.executable, residue_runner.__file__],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return answer


USERS = [pytest.param(None, id="root"), pytest.param(ORDINARY_USER, id="ordinary")]
ROWS = [pytest.param(kind, id=kind.name) for kind in KINDS]


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.attack(79, 81)
def test_nothing_is_left_for_the_next_program(kind: Kind, user: int | None) -> None:
    row = found(user)[kind.name]

    assert row["leave"][0] == "ok", row
    assert row["look"][0] == "ok", row
    assert row["found"] is False
    if kind.ends_cell is not None:
        assert row["reused"] is not kind.ends_cell


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("kind", ROWS)
def test_each_look_finds_what_is_there(kind: Kind, user: int | None) -> None:
    assert found(user)[kind.name]["whole"] is (kind.wall != "refused")


@pytest.mark.parametrize("wall", WITHOUT)
def test_without_its_wall_each_kind_is_found(wall: str) -> None:
    rows = found(None, wall)

    assert [name for name, row in rows.items() if not row["found"]] == []


def test_there_are_enough_kinds() -> None:
    assert len({kind.name for kind in LEFT}) == len(LEFT) >= 40
