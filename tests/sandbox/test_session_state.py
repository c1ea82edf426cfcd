"""A session keeps its state: variables, files, forks; and says when it does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

from toolcell.core import CellLostError, InvalidInputError
from toolcell.sandbox import HostCalls, Limits, SandboxManager, Session

from ..conftest import PROCESSES, SUBPROCESS, BackendRow

pytestmark = pytest.mark.anyio

SHORT = Limits(wall_seconds=1.5)


async def value(session: Session, code: str) -> object:
    result = await session.run(code)
    assert result.ok, result.stderr
    return result.value


@asynccontextmanager
async def at_work(session: Session) -> AsyncIterator[None]:
    """A run of the session that lasts as long as this."""
    begun, over = anyio.Event(), anyio.Event()

    async def wait(*_: object) -> dict[str, Any]:
        begun.set()
        await over.wait()
        return {"value": None}

    calls = HostCalls(names=("wait",), handler=wait)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(session.run, "tools.wait()", calls=calls))
        await begun.wait()
        yield
        over.set()


@pytest.mark.promise("P-01")
@pytest.mark.smoke
async def test_variables_imports_folder_and_files_persist(
    sandbox: SandboxManager,
) -> None:
    async with sandbox.session() as session:
        first = await session.run("import os, math\nx = 41\nos.mkdir('d')")
        await session.run("os.chdir('d')\nopen('f', 'w').write('text')")
        seen = await value(session, "[x + 1, math.floor(1.5), os.getcwd()[-2:]]")

        assert first.state == "kept"
        assert seen == [42, 1, "/d"]
        assert await session.read_file("d/f") == b"text"


@pytest.mark.promise("P-02")
async def test_a_fresh_run_stands_beside_the_state(sandbox: SandboxManager) -> None:
    async with sandbox.session() as session:
        await session.run("x = 1")
        fresh = await session.run("'x' in globals()", fresh=True)
        crashed = await session.run("import os; os.abort()", fresh=True)

        assert (fresh.value, fresh.state) == (False, None)
        assert crashed.status == "crashed"
        assert await value(session, "x") == 1


@pytest.mark.promise("P-03")
async def test_an_error_and_an_exit_keep_the_state(sandbox: SandboxManager) -> None:
    async with sandbox.session() as session:
        failed = await session.run("x = 7\n1 / 0")
        left = await session.run("import sys\nsys.exit(3)")

        assert (failed.status, failed.state) == ("error", "kept")
        assert failed.exception is not None
        assert failed.exception.type == "ZeroDivisionError"
        assert (left.status, left.exit_code, left.state) == ("exit", 3, "kept")
        assert await value(session, "x") == 7


@pytest.mark.promise("P-04")
async def test_a_deadline_interrupts_and_keeps_the_state(
    sandbox: SandboxManager,
) -> None:
    code = (
        "import time\nx = 1\ntry:\n    while True: time.sleep(0.01)\n"
        "finally:\n    print('swept')"
    )
    async with sandbox.session() as session:
        result = await session.run(code, limits=SHORT)

        assert (result.status, result.state) == ("timeout", "kept")
        assert result.stdout == "swept\n"
        assert await value(session, "x") == 1


@pytest.mark.promise("P-04")
async def test_a_program_that_does_not_obey_is_killed_and_its_state_lost(
    sandbox: SandboxManager,
) -> None:
    code = (
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "x = 1\nprint('no', flush=True)\nwhile True: pass"
    )
    async with sandbox.session() as session:
        result = await session.run(code, limits=SHORT)
        after = await session.run("'x' in globals()")

    assert (result.status, result.state) == ("timeout", "lost")
    assert result.stdout == "no\n"
    assert (after.value, after.state) == (False, "kept")


@pytest.mark.promise("P-04")
async def test_a_stopped_interpreter_costs_its_state_and_not_the_session(
    sandbox: SandboxManager,
) -> None:
    async with sandbox.session() as session:
        inputs = {"pid": await value(session, "import os\nos.getpid()")}
        stop = "import os, signal\nos.kill(pid, signal.SIGSTOP)"
        assert (await session.run(stop, inputs=inputs, fresh=True)).status == "ok"
        # More than waits in a socket that nobody reads.
        inputs = {"text": "x" * 900_000}
        limits = Limits(wall_seconds=0.5)
        result = await session.run("len(text)", inputs=inputs, limits=limits)
        after = await session.run("6 * 7")

    assert (result.status, result.state) == ("timeout", "lost")
    assert (after.value, after.state) == (42, "kept")


@pytest.mark.promise("P-05", "cluster-21")
async def test_interrupt_ends_the_run_as_cancelled(sandbox: SandboxManager) -> None:
    begun = anyio.Event()
    results = []
    code = "x = 5\nprint('here', flush=True)\nimport time\ntime.sleep(600)"
    async with sandbox.session() as session:

        async def run() -> None:
            result = await session.run(code, on_output=lambda *_: begun.set())
            results.append(result)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await begun.wait()
            await session.interrupt()

        assert [(each.status, each.state) for each in results] == [
            ("cancelled", "kept")
        ]
        assert await value(session, "x") == 5


@pytest.mark.promise("P-07")
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import os; os._exit(4)", "exit"),
        ("import os; os.kill(os.getpid(), 9)", "killed"),
        ("import ctypes; ctypes.string_at(0)", "crashed"),
    ],
)
async def test_a_lost_interpreter_says_so(
    sandbox: SandboxManager, code: str, status: str
) -> None:
    async with sandbox.session() as session:
        await session.run("x = 1")
        result = await session.run(code)
        after = await session.run("'x' in globals()")

    assert (result.status, result.state) == (status, "lost")
    assert (after.value, after.state) == (False, "kept")


@pytest.mark.promise("P-07")
async def test_state_lost_between_runs_is_told_in_the_next_result(
    sandbox: SandboxManager,
) -> None:
    code = (
        "import os, threading, time\n"
        "def end():\n"
        "    while not os.path.exists('go'): time.sleep(0.01)\n"
        "    os._exit(0)\n"
        "threading.Thread(target=end).start()\nos.getpid()"
    )
    async with sandbox.session() as session:
        kept = await session.run(code)
        assert kept.state == "kept"
        # It ends while a new interpreter waits for its end.
        await session.run(
            "import os, time\n"
            "open('go', 'w').close()\n"
            "while os.path.exists(f'/proc/{pid}'): time.sleep(0.01)",
            inputs={"pid": kept.value},
            fresh=True,
        )
        after = await session.run("'end' in globals()")

    assert after.value is False
    assert any("were lost" in warning for warning in after.warnings)


@pytest.mark.promise("P-08")
async def test_two_sessions_share_nothing_but_the_machine(
    sandbox: SandboxManager,
) -> None:
    async with sandbox.session() as one, sandbox.session() as other:
        await one.run("x = 1")
        seen = await other.run("'x' in globals()")

    assert seen.value is False


@pytest.mark.promise("P-09")
async def test_processes_of_the_program_live_on_and_daemons_do_not(
    sandbox: SandboxManager,
) -> None:
    daemon = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
        "    if os.fork() == 0:\n        time.sleep(600)\n    os._exit(0)\nos.wait()"
    )
    async with sandbox.session() as session:
        before = await value(session, PROCESSES)
        await session.run(
            "import subprocess\nchild = subprocess.Popen(['sleep', '600'])"
        )
        await session.run(daemon)
        assert await value(session, "child.poll() is None") is True
        await session.run("child.kill(); child.wait()")
        assert await value(session, PROCESSES) == before


@pytest.mark.promise("P-11", "cluster-21")
@pytest.mark.smoke
async def test_a_fork_goes_its_own_way(sandbox: SandboxManager) -> None:
    async with sandbox.session() as session:
        await session.run("import random\nx = [1]\nopen('f', 'w').write('old')")
        branch = await session.fork()
        await branch.run("x.append(2)\nopen('f', 'w').write('new')")

        assert await value(session, "[x, open('f').read()]") == [[1], "old"]
        assert await value(branch, "[x, open('f').read()]") == [[1, 2], "new"]
        assert await branch.read_file("f") == b"new"
        assert await session.read_file("f") == b"old"
        numbers = [await value(each, "random.random()") for each in (session, branch)]
        assert len(set(numbers)) == 2
        await branch.aclose()
        assert await value(session, "x") == [1]


@pytest.mark.promise("P-12")
async def test_a_fork_names_what_is_shared(sandbox: SandboxManager) -> None:
    async with sandbox.session() as session:
        await session.run("kept = open('open-file', 'w')")
        branch = await session.fork()

    assert any("open-file is shared" in warning for warning in branch.warnings)


@pytest.mark.promise("P-13")
async def test_live_threads_refuse_a_fork_unless_allowed(
    sandbox: SandboxManager,
) -> None:
    code = (
        "import threading\nstop = threading.Event()\n"
        "threading.Thread(target=stop.wait, name='busy', daemon=True).start()"
    )
    async with sandbox.session() as session:
        await session.run(code)
        with pytest.raises(InvalidInputError, match="busy"):
            await session.fork()
        branch = await session.fork(allow_threads=True)
        alive = await value(branch, "threading.active_count()")

    assert alive == 1
    assert "the thread busy was lost" in branch.warnings


@pytest.mark.promise("P-15", "cluster-21")
@pytest.mark.smoke
async def test_a_checkpoint_can_be_gone_back_to_again(sandbox: SandboxManager) -> None:
    async with sandbox.session() as session:
        await session.run("x = 1\nopen('f', 'w').write('1')")
        point = await session.checkpoint()
        for number in (2, 3):
            await session.run(f"x = {number}\nopen('f', 'w').write('{number}')")
            await session.rollback(point)
            assert await value(session, "[x, open('f').read()]") == [1, "1"]
        with pytest.raises(InvalidInputError, match="no checkpoint"):
            await session.rollback("main-77")


@pytest.mark.promise("P-15")
async def test_a_run_that_waits_for_a_rollback_finds_the_checkpoint(
    sandbox: SandboxManager,
) -> None:
    seen: list[object] = []
    async with sandbox.session() as session, anyio.create_task_group() as tasks:
        await session.run("x = 1")
        point = await session.checkpoint()
        await session.run("x = 2")

        async def look() -> None:
            seen.append(await value(session, "x"))

        async with at_work(session):
            tasks.start_soon(session.rollback, point)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(look)
            await anyio.wait_all_tasks_blocked()
        await session.rollback(point)
        await session.aclose()
        assert [*seen, await value(session, "x")] == [1, 1]


@pytest.mark.promise("P-15")
async def test_a_checkpoint_whose_drop_was_cancelled_is_kept(
    sandbox: SandboxManager,
) -> None:
    async with sandbox.session() as session:
        await session.run("x = 1")
        point = await session.checkpoint()
        await session.run("x = 2")
        async with at_work(session):
            with anyio.move_on_after(0.05) as scope:
                await session.drop(point)
        await session.rollback(point)

        assert scope.cancelled_caught
        assert await value(session, "x") == 1
        await session.drop(point)
        with pytest.raises(InvalidInputError, match="no checkpoint"):
            await session.rollback(point)


@pytest.mark.promise("P-11")
async def test_a_closed_fork_is_refused(sandbox: SandboxManager) -> None:
    async with sandbox.session() as session:
        await session.run("x = 1")
        branch = await session.fork()
        await branch.aclose()
        await branch.aclose()
        for refused in (
            branch.run("x"),
            branch.run("1", fresh=True),
            branch.fork(),
            branch.write_file("f", "text"),
        ):
            with pytest.raises(InvalidInputError, match="fork was closed"):
                await refused
        assert await value(session, "x") == 1


@pytest.mark.promise("P-14")
async def test_forks_are_limited_in_number(sandbox: SandboxManager) -> None:
    async with sandbox.session() as session:
        await session.run("x = 1")
        for _ in range(16):
            await session.fork()
        with pytest.raises(InvalidInputError, match="16 forks"):
            await session.fork()


@pytest.mark.promise("P-14")
async def test_there_must_be_something_to_fork(sandbox: SandboxManager) -> None:
    async with sandbox.session() as session:
        with pytest.raises(InvalidInputError, match="there is no state"):
            await session.fork()


@pytest.mark.promise("P-06")
async def test_an_idle_session_ends(backend: BackendRow) -> None:
    config = backend.config(session_idle_seconds=0.2)
    async with SandboxManager(config) as manager:
        with pytest.raises(CellLostError, match=r"idle for 0\.2 seconds"):
            async with manager.session() as session:
                await session.run("x = 1")
                # Its process is gone once its work dir no longer answers.
                while True:
                    await anyio.sleep(0.05 * 6)
                    await session.run("x")


@pytest.mark.promise("P-06")
async def test_a_session_ends_with_its_lifetime(backend: BackendRow) -> None:
    config = backend.config(session_lifetime_seconds=0.5)
    async with SandboxManager(config) as manager:
        with pytest.raises(CellLostError, match="was open for"):
            async with manager.session() as session:
                while True:
                    await session.run("x = 1")
                    await anyio.sleep(0.02)


@pytest.mark.promise("P-06")
async def test_a_session_that_ends_before_its_cell_is_up_says_so() -> None:
    config = SUBPROCESS.config(session_lifetime_seconds=0.001)
    async with SandboxManager(config) as manager:
        with pytest.raises(CellLostError, match="was open for"):
            async with manager.session() as session:
                await session.run("x = 1")
                await anyio.sleep_forever()


@pytest.mark.promise("P-10")
async def test_cpu_time_of_a_run_is_its_own(sandbox: SandboxManager) -> None:
    busy = """
import time
began = time.process_time()
while (used := time.process_time() - began) < 0.4:
    pass
"""
    async with sandbox.session() as session:
        work = await session.run(busy)
        branch = await session.fork()
        rests = [await each.run("1") for each in (session, branch, session)]
        end = await session.run(
            busy + "import os\nprint(used * 1000, flush=True)\nos._exit(0)"
        )

    assert work.usage.cpu_ms >= 380
    # gVisor's clock counts what other machines take of the processor as well.
    assert [rest.usage.cpu_ms < 350 for rest in rests] == [True] * 3
    assert end.state == "lost"
    assert 380 <= end.usage.cpu_ms < float(end.stdout) + 300


@pytest.mark.promise("P-10", "FP26")
async def test_each_run_tells_what_it_used_and_what_held(
    sandbox: SandboxManager, backend: BackendRow
) -> None:
    work = """
import time
data = b'x' * (40 << 20)
end = time.process_time() + 0.5
while time.process_time() < end:
    pass
"""
    once = await sandbox.run("1")
    async with sandbox.session() as session:
        first = await session.run("x = 41")
        busy = await session.run(work)
        idle = await session.run("x + 1")
        fresh = await session.run("1", fresh=True)
        branch = await session.fork()
        forked = await branch.run("x + 1")

    peaks = first.usage.peak_memory_bytes, busy.usage.peak_memory_bytes
    assert 0 < peaks[0] < 40 << 20 < peaks[1]
    assert idle.usage.cpu_ms < 400 <= busy.usage.cpu_ms
    for result in (first, busy, idle, fresh, forked):
        assert result.isolation == once.isolation


@pytest.mark.promise("P-10")
async def test_a_kill_for_memory_is_told_of_no_other_run(
    sandbox: SandboxManager,
) -> None:
    greedy = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "x = b'x' * (400 << 20)"]).returncode
"""
    async with sandbox.session() as session:
        child = await session.run(greedy)
        own = await session.run("import os\nos.kill(os.getpid(), 9)")

    # Where the kernel does not hold memory, the child or the whole run is ended.
    assert child.value in (-9, 1) or child.status == "out_of_memory"
    assert own.status == "killed"


@pytest.mark.promise("P-01")
async def test_a_call_that_is_cancelled_before_it_begins_harms_no_state(
    sandbox: SandboxManager,
) -> None:
    async with sandbox.session() as session:
        await session.run("x = 41")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await session.run("x = 0")
        later = await session.run("x + 1")

    assert scope.cancelled_caught
    assert later.value == 42
