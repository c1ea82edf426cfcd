"""A manager reports what goes wrong with its cells, and nothing of what goes well."""

from __future__ import annotations

import select
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import CellLostError, SandboxUnavailableError
from toolcell.sandbox import SandboxConfig, SandboxManager
from toolcell.sandbox.cell.wire.frames import encode

from ...support.cells.ended_launcher import linked_interpreter, without_launcher
from ...support.cells.speaking_cell import cell_that_says
from ...support.polling import until

pytestmark = pytest.mark.anyio
SLEEPS = "import time; time.sleep(600)"
KILLS_ITSELF = "import os; os.kill(os.getpid(), 9)"

Reports = list[tuple[str, Mapping[str, str | None]]]


@asynccontextmanager
async def listened(**options: Any) -> AsyncIterator[tuple[SandboxManager, Reports]]:
    reported: Reports = []
    manager = SandboxManager(SandboxConfig(backend="subprocess", **options))
    manager.cell_listeners.append(lambda *event: reported.append(event))
    async with manager:
        yield manager, reported


def facts(reason: str, agent: str | None = None) -> Mapping[str, str | None]:
    return {"backend": "subprocess", "agent": agent, "reason": reason}


def end(cell: Any) -> None:
    """End a cell from outside: its first process, and with it the supervisor."""
    signal.pidfd_send_signal(cell._process._handle, signal.SIGKILL)
    poller = select.poll()
    poller.register(cell._channel._sock, select.POLLRDHUP)
    poller.poll()


async def use(manager: SandboxManager, *, streamed: bool) -> None:
    with pytest.raises(CellLostError):
        if streamed:
            async for _ in manager.stream(SLEEPS, agent_id="a"):
                pass
        else:
            await manager.run(SLEEPS, agent_id="a")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_cell_that_ends_in_a_run_is_lost(streamed: bool) -> None:
    async with listened() as (manager, reported):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(use, manager, streamed=streamed))
            await until(lambda: manager.active_cells == 1)
            [cell] = manager._active
            await until(lambda: cell.handshake.started is True)
            end(cell)

    assert reported == [("lost", facts("run", "a"))]


async def test_the_cell_of_a_session_is_lost_once() -> None:
    async with listened() as (manager, reported):
        async with manager.session(agent_id="a") as session:
            await session.run("x = 1")
            end(session._shared.cell)
            for _ in range(2):
                with pytest.raises(CellLostError):
                    await session.run("x")
        with pytest.raises(CellLostError):
            await session.read_file("a")

    assert reported == [("lost", facts("session", "a"))]


async def test_a_command_that_is_lost_with_its_cell_tells_of_it_once() -> None:
    async with listened() as (manager, reported):
        async with manager.session(agent_id="a") as session:
            for _ in range(2):
                await session.exec(["sleep", "600"])
            end(session._shared.cell)
            for process in session.processes():
                await process.ended()
            with pytest.raises(CellLostError):
                await session.exec(["true"])

    assert reported == [("lost", facts("session", "a"))]


async def test_commands_that_end_with_their_session_tell_nothing() -> None:
    async with listened() as (manager, reported):
        async with anyio.create_task_group() as tasks:
            async with manager.session() as session:
                process = await session.exec(["sleep", "600"])
                tasks.start_soon(process.ended)

    assert reported == []


async def test_commands_that_end_at_the_end_of_a_lifetime_tell_nothing() -> None:
    async with listened(session_lifetime_seconds=3) as (manager, reported):
        async with manager.session() as session:
            process = await session.exec(["sleep", "600"])
            await process.ended()

    assert reported == []


async def test_commands_that_end_with_their_manager_tell_nothing() -> None:
    async with listened() as (manager, reported):
        open_at_the_end = manager.session()
        session = await open_at_the_end.__aenter__()
        process = await session.exec(["sleep", "600"])
    await process.ended()
    await open_at_the_end.__aexit__(None, None, None)

    assert reported == []


async def test_a_ready_cell_that_ended_is_lost() -> None:
    async with listened(pool=1) as (manager, reported):
        await until(lambda: manager.pool_stats().ready == 1)
        end(manager._cells._pool._ready[0])
        result = await manager.run("1")

    assert result.value == 1
    assert reported == [("lost", facts("ready"))]


async def test_what_ends_on_purpose_is_not_lost() -> None:
    async with listened(pool=1, session_idle_seconds=2) as (manager, reported):
        await manager.run("1")
        await manager.run(KILLS_ITSELF)
        async with manager.session() as session:
            with anyio.CancelScope() as scope:
                code = f"print('up', flush=True)\n{SLEEPS}"
                await session.run(code, on_output=lambda *_: scope.cancel())
            await session.run("1")
        with pytest.raises(CellLostError):
            await session.run("1")
        async with manager.session() as idle:
            await until(lambda: not idle.alive)
            with pytest.raises(CellLostError, match="idle"):
                await idle.run("1")
        open_at_the_end = manager.session()
        left = await open_at_the_end.__aenter__()
        await left.run("1")
    with pytest.raises((CellLostError, SandboxUnavailableError)):
        await left.run("1")
    await open_at_the_end.__aexit__(None, None, None)

    assert reported == []


async def test_that_no_cell_can_be_made_is_reported_once(tmp_path: Path) -> None:
    link = linked_interpreter(tmp_path)
    async with listened(python=str(link)) as (manager, reported):
        await manager.run("1")
        with without_launcher(manager, link):
            for _ in range(3):
                with pytest.raises(SandboxUnavailableError):
                    await manager.run("1")
        for _ in range(2):
            await manager.run("1")

    everybody = {"backend": "subprocess", "agent": None}
    assert reported == [("unavailable", facts("not_made")), ("available", everybody)]


async def test_a_cell_that_does_not_get_ready_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    odd, theirs = cell_that_says(encode({"type": "ready", "protocol": 99}))

    async def make_odd(_: object) -> Any:
        return odd

    async with listened() as (manager, reported):
        monkeypatch.setattr(manager._open_backend, "create_cell", make_odd)
        with theirs, pytest.raises(SandboxUnavailableError):
            await manager.run("1")

    assert reported == [("unavailable", facts("not_started"))]


async def test_a_cell_that_is_not_clean_is_discarded() -> None:
    async with listened(programs_per_cell=100) as (manager, reported):
        await manager.run(KILLS_ITSELF, agent_id="a")

    assert reported == [("discarded", facts("not_clean", "a"))]


async def test_a_cell_that_ends_while_it_is_made_new_is_discarded() -> None:
    async with listened(programs_per_cell=100) as (manager, reported):
        await manager.run("1", agent_id="a")
        [line] = manager._cells._pool._used._waiting.values()
        [(_, cell)] = line
        end(cell)
        result = await manager.run("1", agent_id="a")

    assert result.value == 1
    assert reported == [("discarded", facts("not_renewed", "a"))]
