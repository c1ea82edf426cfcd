"""What dead hosts left: never waited for at a start, named where it stays."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcell.core import SandboxUnavailableError
from toolcell.sandbox.backends.docker_hosts import HostsFile
from toolcell.sandbox.cell.launcher.cgroups import GroupMaker
from toolcell.sandbox.machine import host_cgroups, process_identity
from toolcell.sandbox.spi import clean, folder_prefix

from ...support.cells.leftovers import host_groups, name_groups_apart
from ...support.child import Child
from ...support.frozen import frozen

OF_THE_DEAD = "999999-1"
SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


@pytest.fixture
def place() -> str:
    """Where this process makes its groups."""
    host_cgroups.remove(host_groups())
    return next(iter(host_cgroups.parents().values()))


@pytest.fixture
def stuck(place: str) -> Iterator[list[str]]:
    """Three groups of a dead host, each with a process that cannot be killed."""
    dead = host_cgroups.name_of(OF_THE_DEAD)
    groups = [f"{place}/{dead}-{number}" for number in range(3)]
    sleepers = [Child(SLEEPER) for _ in groups]
    try:
        with frozen(*(sleeper.pid for sleeper in sleepers)):
            for number, (group, sleeper) in enumerate(
                zip(groups, sleepers, strict=True)
            ):
                # By its own name any host that starts would remove an empty one.
                made = Path(place, f"{host_cgroups.own_name()}-stuck-{number}")
                made.mkdir()
                (made / "cgroup.procs").write_text(str(sleeper.pid))
                made.rename(group)
            yield groups
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()
        assert host_cgroups.remove(dict(zip(groups, groups, strict=True))) == []


@pytest.mark.promise("F3")
def test_a_start_waits_for_no_leftover(
    stuck: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("time.sleep", pytest.fail)
        removed = host_cgroups.sweep()

    assert not set(stuck) & set(removed)


@pytest.mark.promise("F3")
@pytest.mark.anyio
async def test_what_could_not_be_removed_is_named(
    stuck: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_cgroups, "EMPTY_SECONDS", 0.1)
    cleaned = await clean("unix:///nowhere")

    names = {f"cgroup {path}" for path in stuck}
    assert names <= set(cleaned.left)
    assert not names & set(cleaned.removed)


@pytest.mark.promise("F3")
def test_the_command_says_what_is_left(stuck: list[str]) -> None:
    command = str(Path(sys.executable).parent / "toolcell")
    done = subprocess.run([command, "clean", "--json"], capture_output=True, timeout=60)

    assert done.returncode == 1
    assert {f"cgroup {path}" for path in stuck} <= set(json.loads(done.stdout)["left"])


@pytest.mark.promise("F3")
@pytest.mark.anyio
async def test_leftovers_of_another_unit_are_found(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_groups_apart(monkeypatch)
    unit = Path(place, f"unit-of-{os.getpid()}")
    unit.mkdir()
    try:
        dead = unit / f"{host_cgroups.name_of(OF_THE_DEAD)}-0"
        dead.mkdir()
        cleaned = await clean("unix:///nowhere")

        assert f"cgroup {dead}" in cleaned.removed
        assert not dead.exists()
    finally:
        host_cgroups.remove({"": str(unit)})


LIMITS = {"memory_mib": 64, "pids": 16, "cpus": 1}


@pytest.mark.promise("A27")
def test_a_group_that_the_kernel_held_is_removed_later() -> None:
    paths = host_groups()
    try:
        maker = GroupMaker(paths)
        first = maker.make(LIMITS)
        held = [Path(path, "cell-1", "held") for path in set(paths.values())]
        for group in held:
            group.mkdir()
        maker.remove(first)
        assert all(each.exists() for each in held)
        for group in held:
            group.rmdir()
        maker.remove(maker.make(LIMITS))

        assert not any(Path(path, "cell-1").exists() for path in paths.values())
        maker.remove_parents()
        assert not any(os.path.exists(path) for path in paths.values())
    finally:
        host_cgroups.remove(paths)


@pytest.mark.promise("A27")
def test_a_group_that_is_half_made_is_taken_back() -> None:
    paths = host_groups()
    try:
        with pytest.raises(OSError, match="Invalid argument"):
            GroupMaker(paths).make({**LIMITS, "pids": -7})

        assert not any(Path(path, "cell-1").exists() for path in paths.values())
    finally:
        host_cgroups.remove(paths)


RUN = """
import anyio
from toolcell.sandbox import SandboxConfig, SandboxManager

async def main():
    config = SandboxConfig(backend="subprocess", **options)
    async with SandboxManager(config) as manager:
        print((await manager.run("6 * 7")).value)

anyio.run(main)
"""


@pytest.mark.promise("F10")
@pytest.mark.parametrize(
    ("soft", "hard", "level", "said"),
    [
        (40, 4096, "confined", "42"),
        pytest.param(60, 60, "kernel", "42", marks=pytest.mark.namespaces),
        (24, 24, "kernel", "`ulimit -Hn`"),
        (60, 60, "confined", "`ulimit -Hn`"),
    ],
)
def test_a_low_limit_of_open_files_is_raised_or_named(
    soft: int, hard: int, level: str, said: str
) -> None:
    options = f"options = {{'strongest_isolation': {level!r}}}\n"
    done = subprocess.run(
        [sys.executable, "-c", options + RUN],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert said in done.stdout + done.stderr


@pytest.mark.anyio
async def test_folders_of_the_living_stay_whatever_they_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # Random names of folders hold underscores, too.
    names = ("a", "b_c_")
    living = [tmp_path / f"{folder_prefix()}{name}" for name in names]
    # Those of another PID namespace may belong to the living of a container.
    living += [tmp_path / f"toolcell_1-999999-1_{name}" for name in names]
    mark = f"toolcell_{process_identity.pid_namespace()}"
    dead = [tmp_path / f"{mark}-999999-1_{name}" for name in names]
    for folder in (*living, *dead):
        folder.mkdir()
    cleaned = await clean("unix:///nowhere")

    assert {f"folder {each}" for each in dead} <= set(cleaned.removed)
    assert sorted(tmp_path.iterdir()) == sorted(living)


def test_a_file_that_an_engine_did_not_find_is_to_blame_for_all_who_met_it() -> None:
    file = HostsFile("")
    file.make()
    [bind] = file.binds()
    error = SandboxUnavailableError(f"bind source path does not exist: {bind.source}")
    file.remove()

    assert file.is_to_blame(error)
    assert file.binds() == []
