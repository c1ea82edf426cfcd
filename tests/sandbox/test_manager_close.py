"""Managers that close while runs, streams and transfers are at work."""

from __future__ import annotations

import signal
import socket
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from toolcell.core import CellLostError, SandboxUnavailableError
from toolcell.sandbox import Event, Finished, Network, SandboxManager, Stdout
from toolcell.sandbox.client.cell import Cell
from toolcell.sandbox.spi import Connection

from ..conftest import SUBPROCESS, BackendRow
from ..support.cells.stopped_cell import signal_cell
from ..support.polling import until

pytestmark = pytest.mark.anyio

SLEEPS = "import time\nprint('up', flush=True)\ntime.sleep(600)"


async def test_runs_that_end_while_others_are_stopped_do_no_harm(
    backend: BackendRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcell.sandbox.scheduling.cell_supply._STOP_SECONDS", 60)
    stop, outcomes = Cell.stop, []
    async with anyio.create_task_group() as tasks, AsyncExitStack() as closing:
        manager = await closing.enter_async_context(SandboxManager(backend.config()))

        async def run(started: anyio.Event) -> None:
            result = await manager.run(SLEEPS, on_output=lambda *_: started.set())
            outcomes.append(result.status)

        async def stop_until_it_is_left(cell: Cell) -> None:
            await stop(cell)
            await until(lambda: cell not in manager._active)

        for _ in range(3):
            started = anyio.Event()
            tasks.start_soon(run, started)
            with anyio.fail_after(60):
                await started.wait()
        monkeypatch.setattr(Cell, "stop", stop_until_it_is_left)

    assert outcomes == ["cancelled"] * 3


async def test_a_cell_that_reads_nothing_does_not_hold_up_the_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolcell.sandbox.scheduling.cell_supply._STOP_SECONDS", 0.1)
    lost: list[CellLostError] = []

    async def write(session: Any) -> None:
        with pytest.raises(CellLostError) as caught:
            await session.write_file("data", bytes(20_000_000))
        lost.append(caught.value)

    async with anyio.create_task_group() as tasks, AsyncExitStack() as opened:
        async with SandboxManager(SUBPROCESS.config(pool=0)) as manager:
            session = await opened.enter_async_context(manager.session())
            await session.run("1")
            signal_cell(session, signal.SIGSTOP)
            tasks.start_soon(write, session)
            await anyio.wait_all_tasks_blocked()

    assert len(lost) == 1


CONNECTS = """
import os, socket, time
host, _, port = os.environ["http_proxy"][7:].partition(":")
way = socket.create_connection((host, int(port)))
way.sendall(f"CONNECT {target} HTTP/1.1\\r\\nHost: {target}\\r\\n\\r\\n".encode())
assert way.recv(1000).startswith(b"HTTP/1.1 200")
print("up", flush=True)
time.sleep(600)
"""


async def test_a_stream_that_nobody_ends_does_not_hold_up_the_close(
    backend: BackendRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with a connection that is open, either."""
    monkeypatch.setattr("toolcell.sandbox.scheduling.cell_supply._STOP_SECONDS", 0.1)
    with anyio.fail_after(60), socket.create_server(("127.0.0.1", 0)) as server:
        target = f"127.0.0.1:{server.getsockname()[1]}"
        config = backend.config(network=Network.allow([target]))
        async with SandboxManager(config) as manager:
            events = manager.stream(CONNECTS, inputs={"target": target})
            assert await anext(events) == Stdout(b"up\n")
        await events.aclose()


async def test_a_stream_ends_as_cancelled_when_the_manager_closes(
    backend: BackendRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcell.sandbox.scheduling.cell_supply._STOP_SECONDS", 60)
    found: list[Event] = []
    up = anyio.Event()

    async def read(manager: SandboxManager) -> None:
        async for event in manager.stream(SLEEPS):
            found.append(event)
            up.set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            async with SandboxManager(backend.config()) as manager:
                tasks.start_soon(read, manager)
                await up.wait()

    [output, finished] = found
    assert output == Stdout(b"up\n")
    assert isinstance(finished, Finished)
    assert finished.result.status == "cancelled"


async def test_who_reads_a_stream_on_after_the_close_hears_that_it_is_lost(
    backend: BackendRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcell.sandbox.scheduling.cell_supply._STOP_SECONDS", 0.1)
    with anyio.fail_after(60):
        async with SandboxManager(backend.config()) as manager:
            events = manager.stream(SLEEPS)
            assert await anext(events) == Stdout(b"up\n")
        with pytest.raises(CellLostError):
            async for _ in events:
                pass


async def test_a_cell_that_comes_after_the_close_runs_nothing(
    backend: BackendRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Cell] = []
    asked, closed = anyio.Event(), anyio.Event()

    async def run(manager: SandboxManager) -> None:
        with pytest.raises(SandboxUnavailableError, match="was closed"):
            await manager.run("1")

    async with anyio.create_task_group() as tasks:
        async with SandboxManager(backend.config(pool=0)) as manager:
            create = manager._open_backend.create_cell

            async def create_late(*arguments: Any) -> Cell:
                made.append(await create(*arguments))
                asked.set()
                await closed.wait()
                return made[0]

            monkeypatch.setattr(manager._backend, "create_cell", create_late)
            tasks.start_soon(run, manager)
            with anyio.fail_after(60):
                await asked.wait()
        closed.set()

    assert made[0].gone


async def test_a_listener_that_raises_leaves_an_idle_cell(backend: BackendRow) -> None:
    def refuse(_: Connection) -> None:
        raise KeyError("mine")

    config = backend.config(network=Network.allow(["example.test:80"]))
    code = "import urllib.request\nurllib.request.urlopen('http://other.test/')"
    async with SandboxManager(config) as manager, manager.session() as session:
        cell = session._shared.cell
        with pytest.raises(KeyError, match="mine"):
            await session.run(code, on_connection=refuse)
        with anyio.fail_after(60):
            await cell.wait_idle()
