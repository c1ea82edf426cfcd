"""A host's own groups: always a new name, and removed with all that is in them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from toolcell.sandbox import SandboxManager
from toolcell.sandbox.cell.launcher.cgroups import CellGroup
from toolcell.sandbox.machine import host_cgroups, process_identity

from ...conftest import SUBPROCESS
from ...support.cells.leftovers import host_groups, name_groups_apart
from ...support.child import Child


def test_managers_that_end_in_any_order_leave_the_next_one_a_group() -> None:
    first, second = host_groups(), host_groups()
    host_cgroups.remove(first)
    try:
        third = host_cgroups.create()
        host_cgroups.remove(third)
    finally:
        host_cgroups.remove(second)


def test_a_removed_group_waits_until_what_it_killed_has_left() -> None:
    # Memory that must be freed keeps a killed process in its group for a while.
    code = "held = bytearray(400 << 20); print('held', flush=True); input()"
    groups = host_groups()
    program = Child[bytes](
        ["/usr/bin/env", "python3", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"held\n"
        for path in groups.values():
            # As cells are: a group that has such children has no members.
            cell = Path(path, "cell")
            cell.mkdir()
            (cell / "cgroup.procs").write_text(str(program.pid))

        host_cgroups.remove(groups)

    assert program.returncode == -9
    assert not any(Path(path).exists() for path in groups.values())


def test_a_group_that_is_half_made_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host_cgroups.remove(host_groups())
    controller, place = next(iter(host_cgroups.parents().items()))
    places = {controller: place, "second": "/proc/no-such-place"}
    monkeypatch.setattr(host_cgroups, "parents", lambda: places)
    own = f"{host_cgroups.own_name()}-*"
    before = set(Path(place).glob(own))

    with pytest.raises(OSError, match="no-such-place"):
        host_cgroups.create()

    assert set(Path(place).glob(own)) == before


def test_the_sweep_takes_only_groups_whose_owner_can_be_seen_to_be_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name_groups_apart(monkeypatch)
    ours = host_groups()
    place = str(Path(next(iter(ours.values()))).parent)
    elsewhere = (
        f"{host_cgroups.PREFIX}{process_identity.pid_namespace() + 1}-999999-1-0"
    )
    dead = f"{host_cgroups.name_of('999999-1')}-0"
    try:
        for name in (elsewhere, dead):
            Path(place, name).mkdir()

        removed = host_cgroups.sweep()

        assert f"{place}/{dead}" in removed
        assert Path(place, elsewhere).exists()
        assert all(Path(path).exists() for path in ours.values())
    finally:
        host_cgroups.remove({**ours, "elsewhere": f"{place}/{elsewhere}"})


def test_the_sweep_waits_for_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that frees nothing must not hold up the first run."""
    groups = [f"/sys/fs/cgroup/nowhere/{number}" for number in range(100)]
    asked: list[str] = []

    def stuck(path: str) -> bool:
        asked.append(path)
        return False

    monkeypatch.setattr(host_cgroups, "parents", lambda: {"unified": "/nowhere"})
    monkeypatch.setattr(host_cgroups, "_orphans_in", lambda place: iter(groups))
    monkeypatch.setattr(host_cgroups, "_removed", stuck)
    monkeypatch.setattr("time.sleep", pytest.fail)

    assert host_cgroups.sweep() == []
    assert asked == groups


@pytest.mark.parametrize("own", ["/app", "/app/toolcell-host"])
def test_a_host_that_stepped_aside_makes_groups_where_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str
) -> None:
    monkeypatch.setattr(host_cgroups, "_mounts", lambda: {"unified": str(tmp_path)})
    monkeypatch.setattr(host_cgroups, "_own_paths", lambda: {"unified": own})
    (tmp_path / "app" / "toolcell-host").mkdir(parents=True)
    (tmp_path / "app" / "cgroup.controllers").write_text("cpu memory pids\n")

    assert host_cgroups.parents() == {"unified": f"{tmp_path}/app"}


def test_what_is_in_the_group_steps_aside_into_one_leaf(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host_cgroups, "_mounts", lambda: {"unified": str(tmp_path)})
    monkeypatch.setattr(host_cgroups, "_own_paths", lambda: {"unified": "/app"})
    app = tmp_path / "app"
    app.mkdir()
    (app / "cgroup.controllers").write_text("cpu memory pids\n")
    (app / "cgroup.procs").write_text("41\n")
    write = Path.write_text

    def kernel(path: Path, text: str) -> int:
        """Refuse as the kernel does; a process is in one group."""
        if (
            path.name == "cgroup.subtree_control"
            and (app / "cgroup.procs").stat().st_size
        ):
            raise OSError(16, "Device or resource busy")
        if path == app / "toolcell-host" / "cgroup.procs":
            write(app / "cgroup.procs", "")
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", kernel)

    assert host_cgroups.parents() == {"unified": str(app)}
    assert (app / "toolcell-host" / "cgroup.procs").read_text() == "41"
    assert (app / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"


@pytest.mark.anyio
@pytest.mark.namespaces
async def test_a_cell_sees_no_group_and_no_uid_of_another() -> None:
    """Two managers of one process, and what their cells are told of the host."""
    code = """
group = [line.strip().split(":", 2)[2] for line in open("/proc/self/cgroup")]
uids = open("/proc/self/uid_map").read().split()
[group, uids]
"""
    config = SUBPROCESS.config()
    async with SandboxManager(config) as one, SandboxManager(config) as other:
        said = [(await each.run(code)).value for each in (one, other)]

    uids = []
    for value in said:
        assert isinstance(value, list)
        groups, uid_map = value
        assert "toolcell" not in str(groups)
        uids.append(uid_map)
    if os.geteuid() == 0:
        assert uids[0] != uids[1]


def test_what_waits_in_tcp_sockets_is_held_with_memory() -> None:
    paths = {name: path for name, path in host_groups().items() if name == "memory"}
    try:
        if not paths:
            pytest.skip("version 2 counts it by itself")
        CellGroup(
            {"memory": os.open(paths["memory"], os.O_RDONLY)},
            "cell",
            {"memory_bytes": 64 << 20},
        ).close()
        said = Path(paths["memory"], "cell", "memory.kmem.tcp.limit_in_bytes")
        assert not said.exists() or int(said.read_text()) == 64 << 20
    finally:
        host_cgroups.remove(paths)
