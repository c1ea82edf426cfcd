"""A session is one cell: files stay, interpreters and processes do not."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath
from typing import Any

import anyio
import pytest

from toolcell.core import CellLostError, InvalidInputError
from toolcell.sandbox import Limits, SandboxManager, Session

from ..conftest import SUBPROCESS, BackendRow
from ..support.cells.stopped_cell import signal_cell
from ..support.polling import until

pytestmark = pytest.mark.anyio


@pytest.mark.promise("P-01")
async def test_files_stay_and_variables_do_not(sandbox: SandboxManager) -> None:
    async with sandbox.session(agent_id="a") as session:
        await session.run("x = 1\nopen('kept', 'w').write('text')", fresh=True)
        file = await session.run("open('kept').read()", fresh=True)
        variable = await session.run("x", fresh=True)

    assert session.agent_id == "a"
    assert file.value == "text"
    assert variable.exception is not None
    assert variable.exception.type == "NameError"


@pytest.mark.promise("P-06")
async def test_a_session_lives_before_its_first_run(sandbox: SandboxManager) -> None:
    """Its cell was greeted, and the answer may wait to be read."""
    async with sandbox.session() as session:
        with anyio.fail_after(60):
            # A node of a cluster hears it elsewhere.
            while (
                isinstance(session, Session) and session._shared.cell._channel.quiet()
            ):
                await anyio.sleep(0.01)
        assert session.alive
        assert (await session.run("1 + 1")).value == 2
        assert session.alive


@pytest.mark.promise("P-08")
async def test_two_sessions_share_nothing(sandbox: SandboxManager) -> None:
    async with sandbox.session() as one, sandbox.session() as other:
        await one.run("open('mine', 'w').close()", fresh=True)
        seen = await other.run("import os; os.listdir('.')", fresh=True)

    assert seen.value == []


@pytest.mark.promise("P-09")
async def test_no_process_outlives_its_run(sandbox: SandboxManager) -> None:
    daemon = (
        "import os, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        for fd in (0, 1, 2): os.close(fd)\n        time.sleep(600)\n"
        "    os._exit(0)\nos.wait()"
    )
    processes = "import os; [p for p in os.listdir('/proc') if p.isdigit()]"
    async with sandbox.session() as session:
        before = await session.run(processes, fresh=True)
        assert (await session.run(daemon, fresh=True)).status == "ok"
        seen = await session.run(processes, fresh=True)

    assert isinstance(before.value, list)
    assert isinstance(seen.value, list)
    # The supervisor, what forks for it, and the program that looks.
    assert len(seen.value) == len(before.value) == 3


@pytest.mark.promise("P-03")
async def test_a_failed_run_leaves_the_session_usable(sandbox: SandboxManager) -> None:
    programs = {
        "raise ValueError": "error",
        "import os; os.kill(os.getpid(), 11)": "crashed",
        "while True: pass": "timeout",
        # Nobody but PID 1 is there to be killed, and PID 1 is out of reach.
        "import os\ntry: os.kill(-1, 9)\nexcept OSError: pass": "ok",
    }
    async with sandbox.session() as session:
        for code, status in programs.items():
            limits = Limits(wall_seconds=0.5) if status == "timeout" else None
            result = await session.run(code, fresh=True, limits=limits)
            assert result.status == status
        last = await session.run("'alive'", fresh=True)

    assert last.value == "alive"


@pytest.mark.promise("P-10")
async def test_runs_of_one_session_follow_each_other(sandbox: SandboxManager) -> None:
    code = (
        "import os, time\nassert not os.path.exists('busy')\n"
        "open('busy', 'w').close()\n"
        "time.sleep(0.05)\nos.remove('busy')"
    )
    statuses: list[str] = []
    async with sandbox.session() as session:

        async def one() -> None:
            statuses.append((await session.run(code, fresh=True)).status)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(one)

    assert statuses == ["ok"] * 3


@pytest.mark.promise("P-07")
async def test_a_session_is_alive_while_its_program_talks(
    sandbox: SandboxManager,
) -> None:
    seen: list[bool] = []
    async with sandbox.session() as session:
        await session.run(
            "for _ in range(200): print('x' * 4_000, flush=True)",
            on_output=lambda *_: seen.append(session.alive),
        )

    # More output waits while some is handed over.
    assert seen
    assert all(seen)


@pytest.mark.promise("P-01")
async def test_bash_and_python_share_the_work_dir(sandbox: SandboxManager) -> None:
    async with sandbox.session() as session:
        await session.run("echo from-bash > note", fresh=True, language="bash")
        result = await session.run("open('note').read()", fresh=True)

    assert result.value == "from-bash\n"


@pytest.mark.promise("P-01")
async def test_a_wrong_argument_costs_no_state(sandbox: SandboxManager) -> None:
    odd: Any = 5
    async with sandbox.session() as session:
        await session.run("x = 41")
        for wrong in (
            lambda: session.write_file("a.txt", odd),
            lambda: session.write_file(odd, "text"),
            lambda: session.write_file("a.txt", "\ud800"),
            lambda: session.read_file(odd),
            lambda: session.run("1", calls=odd),
            lambda: session.run("1", inputs=odd),
            lambda: session.run("1", limits=odd),
            lambda: session.run("1", secrets=odd),
            lambda: session.install("numpy"),
        ):
            with pytest.raises(InvalidInputError):
                await wrong()
        await session.write_file(PurePosixPath("a.txt"), "text")
        result = await session.run("x + len(open('a.txt').read())")

    assert (result.value, result.state) == (45, "kept")


@pytest.mark.promise("P-34")
async def test_a_run_narrows_no_limit_that_the_cell_has(
    sandbox: SandboxManager,
) -> None:
    async with sandbox.session() as session:
        mine = session.limits
        same = Limits(wall_seconds=5, memory_mib=mine.memory_mib)
        with pytest.raises(InvalidInputError, match="memory_mib, open_files"):
            await session.run("1", limits=Limits(memory_mib=33, open_files=17))
        result = await session.run("6 * 7", fresh=True, limits=same)

    assert (result.status, result.value) == ("ok", 42)


@pytest.mark.promise("P-07")
async def test_a_run_that_costs_the_cell_says_so_and_so_do_later_calls(
    backend: BackendRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a machine is so busy that the supervisor keeps no deadline."""
    sleeps, limits = "import time; time.sleep(60)", Limits(wall_seconds=30)
    monkeypatch.setattr("toolcell.sandbox.client.cell._SESSION_GRACE_SECONDS", -29.5)
    async with SandboxManager(backend.config()) as sandbox:
        async with sandbox.session() as session:
            late = await session.run(sleeps, limits=limits)

            why = "the supervisor did not end a run in time"
            assert (late.status, late.state) == ("timeout", "lost")
            assert any(why in warning for warning in late.warnings)
            assert (sandbox.active_cells, session.alive) == (0, False)
            for call in (session.run("1"), session.list_files(), session.fork()):
                with pytest.raises(CellLostError, match=why):
                    await call


@pytest.mark.promise("P-07")
async def test_a_lost_cell_stays_lost_for_the_same_reason() -> None:
    async with SandboxManager(SUBPROCESS.config()) as sandbox:
        async with sandbox.session() as session:
            await session.run("1")
            signal_cell(session, signal.SIGKILL)
            for call in (session.run("1"), session.list_files(), session.run("1")):
                with pytest.raises(CellLostError, match="the cell ended"):
                    await call


@pytest.mark.promise("P-07")
async def test_all_calls_of_a_lost_session_are_told_one_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also the one that finds the cell gone while its run is still asked about."""
    judged = anyio.Event()

    async def killed_for_memory(*_: object) -> bool:
        judged.set()
        await anyio.sleep(0)
        return True

    results: list[Any] = []

    async def run(session: Session) -> None:
        results.append(await session.run("import time; time.sleep(600)"))

    async with SandboxManager(SUBPROCESS.config()) as manager:
        async with manager.session() as session, anyio.create_task_group() as tasks:
            await session.run("1")
            await session.list_files()
            process = session._shared.cell._process
            monkeypatch.setattr(process, "killed_for_memory", killed_for_memory)
            tasks.start_soon(run, session)
            await until(lambda: session._shared.cell._busy)
            signal_cell(session, signal.SIGKILL)
            for call in (session.list_files(), session.fork(), session.usage()):
                with pytest.raises(CellLostError, match="the cell ran out of memory"):
                    await call

    [result] = results
    assert judged.is_set()
    assert result.status == "out_of_memory"
    assert "the session ended: the cell ran out of memory" in result.warnings


@pytest.mark.promise("P-07")
async def test_what_goes_on_beside_runs_says_why_the_cell_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Callable[[Session], Awaitable[object]]] = [
        lambda session: session.exec("true"),
        lambda session: session.connect(80),
        lambda session: session.watch(),
        lambda session: session.usage(),
    ]

    async def killed_for_memory(*_: object) -> bool:
        return True

    async with SandboxManager(SUBPROCESS.config()) as manager:
        for call in calls:
            async with manager.session() as session:
                await session.run("1")
                await session.list_files()
                process = session._shared.cell._process
                monkeypatch.setattr(process, "killed_for_memory", killed_for_memory)
                signal_cell(session, signal.SIGKILL)
                with pytest.raises(CellLostError, match="the cell ran out of memory"):
                    await call(session)
