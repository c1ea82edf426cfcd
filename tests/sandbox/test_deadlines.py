"""What is there and does not answer, or does not end, holds up nobody for long."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import InvalidInputError, SandboxUnavailableError
from toolcell.sandbox import HostCalls, Limits, SandboxManager
from toolcell.sandbox.backends import launcher, launcher_start
from toolcell.sandbox.machine import host_cgroups

from ..conftest import SUBPROCESS
from ..support.cells.changed_bundle import changed_bundle
from ..support.frozen import frozen
from ..support.process_tree import below

pytestmark = pytest.mark.anyio

ENDLESS = "print('up', flush=True)\nwhile True: pass"


@pytest.fixture
def freezer() -> None:
    """Skip before tasks begin: a skip inside of a group of them ends the event loop of
    all tests that follow."""
    with frozen():
        pass


@pytest.fixture
def impatient(freezer: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait a tenth of a second for what was killed, where five seconds are right."""
    for name in ("_END_SECONDS", "_KILL_SECONDS"):
        monkeypatch.setattr(launcher, name, 0.1)
    monkeypatch.setattr(host_cgroups, "EMPTY_SECONDS", 0.1)


def processes_of(manager: SandboxManager) -> list[int]:
    """Return the processes of the one cell that is in use."""
    [cell] = manager._active
    process: Any = cell._process
    info = Path(f"/proc/self/fdinfo/{process._handle}").read_text()
    first = int(info.partition("\nPid:")[2].split()[0])
    return [first, *below(first)]


@pytest.mark.promise("F2")
@pytest.mark.usefixtures("impatient")
async def test_a_cell_that_cannot_be_killed_costs_its_run_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    statuses: list[str] = []
    up = anyio.Event()
    config = SUBPROCESS.config(max_concurrency=1, limits=Limits(wall_seconds=3))

    async def run(manager: SandboxManager) -> None:
        result = await manager.run(ENDLESS, on_output=lambda *_: up.set())
        statuses.append(result.status)

    with anyio.fail_after(60):
        async with (
            SandboxManager(config) as manager,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(run, manager)
            await up.wait()
            with frozen(*processes_of(manager)):
                # The one place is free again.
                assert (await manager.run("6 * 7")).value == 42
                assert statuses == ["timeout"]

    assert "a cell is lost" in caplog.text


@pytest.mark.promise("F2")
@pytest.mark.usefixtures("impatient")
async def test_a_cell_that_cannot_be_killed_does_not_hold_up_who_cancels() -> None:
    up = anyio.Event()
    async with SandboxManager(SUBPROCESS.config()) as manager:
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                await manager.run(ENDLESS, on_output=lambda *_: up.set())

            tasks.start_soon(run)
            await up.wait()
            with frozen(*processes_of(manager)), anyio.fail_after(30):
                tasks.cancel_scope.cancel()
                while manager.active_cells:
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(0.01)


@pytest.mark.promise("F2", "A27")
@pytest.mark.usefixtures("impatient")
async def test_a_cell_that_cannot_be_killed_does_not_hold_up_the_close(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcell.sandbox.scheduling.cell_supply._STOP_SECONDS", 0.1)
    caplog.set_level(logging.WARNING)
    with ExitStack() as cold, anyio.fail_after(60):
        async with AsyncExitStack() as opened:
            async with SandboxManager(SUBPROCESS.config()) as manager:
                backend: Any = manager._backend
                groups = dict(backend._setup.cgroups)
                session = await opened.enter_async_context(manager.session())
                await session.run("1")
                cold.enter_context(frozen(*processes_of(manager)))
            left = [path for path in groups.values() if os.path.exists(path)]

    assert all(path in caplog.text for path in left)
    assert bool(left) == bool(groups)
    monkeypatch.undo()
    assert host_cgroups.remove(groups) == []


@pytest.mark.promise("F7")
async def test_a_launcher_that_was_stopped_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with anyio.fail_after(60):
        async with SandboxManager(SUBPROCESS.config(pool=0)) as manager:
            backend: Any = manager._backend
            stopped = backend._launcher._process
            os.kill(stopped.pid, signal.SIGSTOP)
            with monkeypatch.context() as impatient:
                impatient.setattr(launcher, "_ANSWER_SECONDS", 0.1)
                with pytest.raises(SandboxUnavailableError, match="has not answered"):
                    await manager.run("1")
            assert (await manager.run("6 * 7")).value == 42
            assert stopped.returncode == -signal.SIGKILL


@pytest.mark.promise("F7")
async def test_a_launcher_that_was_stopped_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launcher, "_ANSWER_SECONDS", 60)
    with anyio.fail_after(60):
        async with SandboxManager(SUBPROCESS.config(pool=0)) as manager:
            await manager.check()
            backend: Any = manager._backend
            stopped = backend._launcher._process.pid
            os.kill(stopped, signal.SIGSTOP)
            with monkeypatch.context() as impatient:
                impatient.setattr(launcher, "_CHECK_SECONDS", 0.1)
                with pytest.raises(SandboxUnavailableError, match="has not answered"):
                    await manager.check()
            os.kill(stopped, signal.SIGCONT)
            # It was not given up, and its late answer is nobody's.
            await manager.check()
            assert (await manager.run("6 * 7")).value == 42


@pytest.mark.usefixtures("freezer")
async def test_a_machine_that_stood_still_took_no_time_of_an_interrupted_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolcell.sandbox.client.cell._SESSION_GRACE_SECONDS", 60)
    code = (
        "import time\ntry:\n    while True: time.sleep(0.01)\n"
        "except KeyboardInterrupt:\n    x = tools.interrupted()"
    )
    processes: list[int] = []

    async def stand_still(*_: object) -> dict[str, Any]:
        with frozen(*processes):
            # Longer than an interrupted program has.
            time.sleep(1)
        return {"value": 42}

    calls = HostCalls(names=("interrupted",), handler=stand_still)
    async with SandboxManager(SUBPROCESS.config()) as manager:
        async with manager.session() as session:
            await session.run("1")
            processes += processes_of(manager)
            limits = Limits(wall_seconds=0.5)
            result = await session.run(code, limits=limits, calls=calls)
            after = await session.run("x")

    assert (result.status, result.state) == ("timeout", "kept")
    assert after.value == 42


@pytest.mark.promise("F11")
async def test_a_manager_that_is_open_is_not_entered_again() -> None:
    manager = SandboxManager(SUBPROCESS.config())
    for _ in range(2):
        async with manager:
            backend = manager._backend
            with pytest.raises(InvalidInputError, match="open already"):
                await manager.__aenter__()
            assert manager._backend is backend
            assert (await manager.run("6 * 7")).value == 42


@pytest.mark.promise("P-04")
async def test_a_program_that_is_interrupted_before_it_begins_keeps_its_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begins = "            signals.as_python()\n"
    slowly = f"            time.sleep(0.2)\n{begins}"
    code = changed_bundle([("program.stateful", begins, slowly)])
    for name in ("bundle", "compiled_bundle"):
        monkeypatch.setattr(launcher_start, name, lambda: code)
    results = []
    async with (
        SandboxManager(SUBPROCESS.config()) as manager,
        manager.session() as session,
    ):
        await session.run("x = 41")

        async def run() -> None:
            results.append(await session.run("while True: pass"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await anyio.wait_all_tasks_blocked()
            await session.interrupt()
        after = await session.run("x + 1")

    assert [(result.status, result.state) for result in results] == [
        ("cancelled", "kept")
    ]
    assert after.value == 42


async def test_a_fork_interrupts_no_run_but_its_own() -> None:
    waits = "import os\nprint('up', flush=True)\nwhile not os.path.exists('go'): pass"
    begun, results = anyio.Event(), []
    async with (
        SandboxManager(SUBPROCESS.config()) as manager,
        manager.session() as session,
    ):
        await session.run("x = 41")
        fork = await session.fork()

        async def run() -> None:
            told = await session.run(waits, on_output=lambda *_: begun.set())
            results.append(told.status)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await begun.wait()
            await fork.interrupt()
            await session.write_file("go", b"")

    assert results == ["ok"]


@pytest.mark.promise("QX9")
async def test_clocks_that_are_set_during_a_run_cost_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The times of day of the host and of its cell jump at each look."""
    last_import = "from .branches import Branches\n"
    jumps = "import itertools\ntime.time = itertools.cycle([0.0, 2e9]).__next__\n"
    code = changed_bundle([("supervisor.supervisor", last_import, last_import + jumps)])
    for name in ("bundle", "compiled_bundle"):
        monkeypatch.setattr(launcher_start, name, lambda: code)
    monkeypatch.setattr(time, "time", itertools.cycle([0.0, 2e9]).__next__)

    async with SandboxManager(SUBPROCESS.config()) as manager:
        result = await manager.run("import time\ntime.sleep(0.2)\n6 * 7")

    assert (result.status, result.value) == ("ok", 42), result.stderr
    assert 200 <= result.usage.wall_ms < 60_000
