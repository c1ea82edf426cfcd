"""Files of a `confined` cell are counted: often, but not at any cost, and to an end."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from toolcell.core import CellLostError, InvalidInputError
from toolcell.sandbox import Limits, SandboxManager
from toolcell.sandbox.cell.accounting import disk, looks
from toolcell.sandbox.cell.processes import pause
from toolcell.sandbox.cell.supervisor import branches, child, idle_limits

from ...conftest import CONFINED
from ...support.child import Child
from ...support.polling import until
from ...support.process_tree import arguments, look

pytestmark = pytest.mark.anyio


@pytest.mark.promise("R25")
def test_a_folder_that_takes_long_to_count_is_counted_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each look at the clock is a second later, so to count takes a second.
    clock = count(100.0)
    for module in (disk, looks):
        still = SimpleNamespace(monotonic=lambda: next(clock))
        monkeypatch.setattr(module, "time", still)
    watch = disk.DiskWatch([str(tmp_path)], 64, None)

    assert watch.used() == 0
    (tmp_path / "new").write_bytes(b"x" * 100_000)
    assert [watch.used() for _ in range(9)] == [0] * 9
    assert watch.used() >= 100_000


@pytest.mark.promise("R25")
def test_what_filled_a_folder_stays_and_cannot_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks.Pace, "due_in", lambda *_: 0.0)
    watch = disk.DiskWatch([str(tmp_path)], 1, None)
    (tmp_path / "old").write_bytes(b"x" * (3 << 20))
    assert watch.exceeded()

    for _ in range(2):
        watch.begin()
        assert not watch.exceeded()
    (tmp_path / "new").write_bytes(b"x" * (2 << 20))
    assert watch.exceeded()


@pytest.mark.promise("R25")
def test_what_grows_again_and_again_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks.Pace, "due_in", lambda *_: 0.0)
    watch = disk.DiskWatch([str(tmp_path)], 4, None)
    (tmp_path / "old").write_bytes(b"x" * (6 << 20))
    assert watch.exceeded()

    rounds = 0
    while not watch.is_lost:
        watch.begin()
        # As much as passes each look.
        (tmp_path / f"{rounds}").write_bytes(b"x" * 1_000_000)
        watch.exceeded()
        rounds += 1
    # What a file takes up depends on the file system.
    assert 4 <= rounds <= 6


@pytest.mark.promise("R25")
def test_what_a_command_writes_until_it_is_killed_is_no_growth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks.Pace, "due_in", lambda *_: 0.0)
    pieces = iter(["b", "c"])

    def children(_: int) -> list[int]:
        for name in pieces:
            (tmp_path / name).write_bytes(b"x" * (2 << 20))
            return [2]
        return []

    still = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: None)
    monkeypatch.setattr(idle_limits, "time", still)
    tree = SimpleNamespace(children=children)
    monkeypatch.setattr(idle_limits, "process_tree", tree)
    watch = disk.DiskWatch([str(tmp_path)], 1, None)
    (tmp_path / "a").write_bytes(b"x" * (3 << 20))
    assert watch.exceeded()

    nobody: Any = None
    relay: Any = SimpleNamespace(pid=1, forward=lambda *_: None)
    limits = idle_limits.IdleLimits(nobody, watch, nobody, relay, nobody)
    limits.begin()
    while children(1):
        pass
    assert not watch.exceeded()


@pytest.mark.promise("R25")
def test_who_lost_variables_learns_that_the_disk_was_full(tmp_path: Path) -> None:
    watch = disk.DiskWatch([str(tmp_path)], 0, None)
    (tmp_path / "file").write_bytes(b"x" * (2 << 20))
    kept = branches.Branches(str(tmp_path), None, watch)
    interpreter, pipes = child.open_pipes(None)
    pipes.close()
    with Child(["sleep", "20"]) as process:
        interpreter.pid = process.pid
        kept.give_back("main", interpreter, str(tmp_path), kept=True)
        accounting: Any = SimpleNamespace(
            watches_memory=False, children=lambda: [process.pid]
        )
        relay: Any = SimpleNamespace(pid=0, forward=lambda *_: None)
        limits = idle_limits.IdleLimits(accounting, watch, kept, relay, pause.Pause())
        limits.keep()

    assert kept.take("main") == (None, "the disk was full")


@pytest.mark.promise("R25")
def test_interpreters_at_rest_are_looked_at_each_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    still = SimpleNamespace(monotonic=lambda: now[0])
    for module in (disk, looks):
        monkeypatch.setattr(module, "time", still)
    watch = disk.DiskWatch([str(tmp_path)], 1, None)
    assert not watch.exceeded(at_rest=True)
    (tmp_path / "new").write_bytes(b"x" * (3 << 20))

    now[0] += 1.0
    assert not watch.exceeded(at_rest=True)
    now[0] += 0.1
    assert watch.exceeded(at_rest=True)


SMALL = CONFINED.config(limits=Limits(disk_mib=1))
FILL = "while :; do n=$((n+1)); head -c 500000 /dev/zero > $n; done"
TREE = """
import os
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            open(str(os.getpid()), "wb").write(bytes(500_000))
    except OSError:
        pass
"""
THREAD = """
import itertools, os, threading
begin = threading.Event()
def fill():
    begin.wait()
    for each in itertools.count():
        with open(f"{each}", "wb") as file:
            file.write(bytes(500_000))
threading.Thread(target=fill, daemon=True).start()
os.getpid()
"""
PIPE = """
import os, time
os.mkfifo("pipe")
pipe = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
os.set_blocking(pipe, True)
"""
AT_ITS_END = """
try:
    time.sleep(600)
finally:
    os.read(pipe, 1)
"""
DEEP = """
import os, time
for _ in range(101):
    os.mkdir("d")
    os.chdir("d")
time.sleep(600)
"""


def states_of(tasks: Path) -> list[str]:
    """Return the states of a process's threads."""
    states = (look(int(each.name)) for each in tasks.iterdir())
    return [each.state for each in states if each is not None]


@pytest.mark.full
@pytest.mark.promise("R25")
async def test_a_command_that_fills_the_disk_beside_a_run_ends() -> None:
    async with SandboxManager(SMALL) as manager, manager.session() as session:
        await session.run(PIPE)
        filling = f"exec 3> pipe; read; {FILL}"
        process = await session.exec(["bash", "-c", filling], stdin="pipe")
        async with anyio.create_task_group() as group:
            group.start_soon(process.write, b"\n")
            beside = await session.run(AT_ITS_END)
        ended = await process.wait()
        after = await session.run("'alive'")

    assert (beside.status, ended.status) == ("disk_limit", "disk_limit")
    # It has half a second to answer, and did so after the command's end.
    assert beside.state == "kept"
    assert after.value == "alive"


@pytest.mark.full
@pytest.mark.promise("R25")
async def test_a_command_that_forks_and_fills_the_disk_ends() -> None:
    code = f"{TREE}# {os.getpid()}"
    async with SandboxManager(SMALL) as manager, manager.session() as session:
        process = await session.exec(["python3", "-c", code])
        with suppress(CellLostError):
            assert (await process.wait()).status == "disk_limit"
        await until(lambda: not living(code.encode()))


def living(code: bytes) -> list[int]:
    """Return the processes that run a program."""
    pids = map(int, filter(str.isdigit, os.listdir("/proc")))
    return [pid for pid in pids if code in arguments(pid)]


@pytest.mark.full
@pytest.mark.promise("R25")
async def test_a_thread_that_fills_the_disk_between_runs_ends() -> None:
    async with SandboxManager(SMALL) as manager, manager.session() as session:
        tasks = Path(f"/proc/{(await session.run(THREAD)).value}/task")
        await session.run("begin.set()")
        await until(lambda: states_of(tasks) == ["Z"])
        after = await session.run("'alive'")

    assert after.value == "alive"
    assert "the disk was full" in str(after.warnings)


@pytest.mark.promise("P-11")
async def test_a_fork_without_room_for_its_files_is_refused() -> None:
    async with SandboxManager(SMALL) as manager, manager.session() as session:
        await session.run("x = open('file', 'wb').write(bytes(700_000))")
        fork = await session.fork()
        with pytest.raises(InvalidInputError, match="no room"):
            await session.fork()
        kept = [(await each.run("x")).value for each in (session, fork)]

    assert kept == [700_000, 700_000]


@pytest.mark.full
@pytest.mark.promise("R25")
async def test_folders_too_deep_to_measure_cost_the_cell() -> None:
    async with SandboxManager(SMALL) as manager, manager.session() as session:
        deep = await session.run(DEEP)
        with pytest.raises(CellLostError):
            await session.run("'alive'")

    assert deep.status == "disk_limit"
