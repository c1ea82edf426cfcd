"""A caller that is cancelled ends its own run, and nothing else of its session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio
import pytest

from toolcell.core import CellLostError
from toolcell.sandbox import HostCalls, Sandbox, SandboxManager, SandboxSession, Stdout

from ..conftest import BackendRow, run_apart
from ..support.polling import until

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C1")]

SLEEPS = "print('up', flush=True)\nimport time\ntime.sleep(600)"
HOLDS = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print('up', flush=True)
time.sleep(600)
"""
SILENT = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1])
server.accept()[0].recv(1)
"""
Cancel = Callable[[], None]
Work = Callable[[Cancel], Awaitable[object]]
GiveUp = Callable[[Work], Awaitable[None]]
Door = Callable[[SandboxSession, Cancel], Awaitable[object]]
Start = Callable[[], Coroutine[Any, Any, object]]
CutOff = Callable[[Start, Callable[[], bool]], Awaitable[None]]


async def by_scope(work: Work) -> None:
    with anyio.CancelScope() as scope:
        await work(scope.cancel)
    assert scope.cancelled_caught


async def by_task(work: Work) -> None:
    """As `asyncio.wait_for` and servers do: the task itself is cancelled."""
    tasks: list[asyncio.Task[object]] = []

    async def run() -> object:
        return await work(lambda: stop(tasks[0]))

    tasks.append(asyncio.create_task(run()))
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]


def stop(task: asyncio.Task[object]) -> None:
    task.cancel()


async def of_run(session: SandboxSession, cancel: Cancel) -> object:
    return await session.run(SLEEPS, on_output=lambda *_: cancel())


async def of_call(session: SandboxSession, cancel: Cancel) -> object:
    async def wait(*_: object) -> dict[str, Any]:
        cancel()
        await anyio.sleep_forever()
        return {}

    calls = HostCalls(names=("wait",), handler=wait)
    return await session.run("tools.wait()", calls=calls)


async def of_stream(session: SandboxSession, cancel: Cancel) -> object:
    async with aclosing(session.stream(SLEEPS)) as events:
        async for event in events:
            if isinstance(event, Stdout):
                cancel()
    return None


async def of_inputs(session: SandboxSession, cancel: Cancel) -> None:
    """Cancelled while large inputs are on their way into a file."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(later, cancel)
        await session.run("1", inputs={"text": "x" * 900_000})


async def of_fork(session: SandboxSession, cancel: Cancel) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(later, cancel)
        await session.fork()


async def of_exec(session: SandboxSession, cancel: Cancel) -> None:
    """Cancelled while a command starts."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(later, cancel)
        await session.exec(["sleep", "600"])


async def of_wait(session: SandboxSession, cancel: Cancel) -> None:
    """Whoever waits for a command does not own it: it goes on."""
    command = await session.exec("echo up; exec sleep 600")
    async with aclosing(command.output()) as output:
        await anext(output)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(later, cancel)
            await command.wait()
    finally:
        assert command.running
        with anyio.CancelScope(shield=True):
            await command.kill()


async def of_port(session: SandboxSession, cancel: Cancel) -> None:
    """Cancelled while a server is silent."""
    server = await session.exec(["python3", "-uc", SILENT])
    async with aclosing(server.output()) as output:
        _, port = await anext(output)
    async with await session.connect(int(port)) as stream:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(later, cancel)
            await stream.receive()


async def later(cancel: Cancel) -> None:
    cancel()


DOORS = [
    *(of_run, of_call, of_stream, of_inputs, of_fork),
    *(of_exec, of_wait, of_port),
]


@pytest.mark.promise("P-05")
@pytest.mark.parametrize("give_up", [by_scope, by_task])
@pytest.mark.parametrize("what", DOORS)
async def test_a_cancelled_caller_costs_its_own_run_alone(
    sandbox: Sandbox, give_up: GiveUp, what: Door
) -> None:
    await costs_its_own_run_alone(sandbox, give_up, what)


@pytest.mark.promise("P-05")
@pytest.mark.parametrize("what", DOORS)
def test_trio_cancels_alike(backend: BackendRow, what: Door) -> None:
    async def cancelled() -> None:
        async with SandboxManager(backend.config()) as sandbox:
            await costs_its_own_run_alone(sandbox, by_scope, what)

    run_apart(cancelled, backend="trio")


async def costs_its_own_run_alone(
    sandbox: Sandbox, give_up: GiveUp, what: Door
) -> None:
    async with sandbox.session() as session:
        await session.run("x = 41\nopen('note', 'w').write('kept')")
        fork = await session.fork()
        command = await session.exec(["cat"], stdin="pipe")

        with anyio.fail_after(60):
            await give_up(lambda cancel: what(session, cancel))
        later = await session.run("[x + 1, open('note').read()]")

        assert (later.value, later.state) == ([42, "kept"], "kept")
        assert (await fork.run("x")).value == 41
        assert {file.path for file in await session.list_files()} == {"note"}
        await command.write(b"on")
        await command.close_stdin()
        assert (await command.wait()).stdout == "on"


@pytest.mark.promise("P-07")
@pytest.mark.parametrize("fresh", [False, True])
async def test_an_interpreter_that_does_not_end_is_lost_and_the_next_result_says_so(
    sandbox: Sandbox, fresh: bool
) -> None:
    async with sandbox.session() as session:
        await session.run("x = 1\nopen('note', 'w').write('kept')")
        with anyio.CancelScope() as scope:
            await session.run(HOLDS, fresh=fresh, on_output=lambda *_: scope.cancel())
        first = await session.run("['x' in globals(), open('note').read()]")
        second = await session.run("1")

    told = [warning for warning in first.warnings if "cancelled" in warning]
    assert first.value == [fresh, "kept"]
    assert len(told) == (0 if fresh else 1)
    assert not any("cancelled" in warning for warning in second.warnings)


@pytest.mark.promise("P-07")
async def test_a_cell_that_answers_no_interrupt_ends_its_session_and_says_so(
    backend: BackendRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcell.sandbox.client.cell.INTERRUPT_SECONDS", 0.0)
    async with SandboxManager(backend.config()) as sandbox:
        async with sandbox.session() as session:
            with anyio.CancelScope() as scope:
                await session.run(HOLDS, on_output=lambda *_: scope.cancel())
            # Its place is free, though whoever had it has not left.
            assert (sandbox.active_cells, session.alive) == (0, False)
            said = "the session ended: a run was cancelled and did not end in 0 seconds"
            for call in (session.run("1"), session.list_files(), session.fork()):
                with pytest.raises(CellLostError, match=said):
                    await call


async def cut_off_task(start: Start, begun: Callable[[], bool]) -> None:
    task = asyncio.create_task(start())
    await until(begun)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def cut_off_scope(start: Start, begun: Callable[[], bool]) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start)
        await until(begun)
        tasks.cancel_scope.cancel()


@pytest.mark.promise("P-23")
@pytest.mark.parametrize(
    ("loop", "cut_off"), [("asyncio", cut_off_task), ("trio", cut_off_scope)]
)
def test_a_place_is_free_once_a_cancelled_run_has_ended(
    backend: BackendRow, loop: str, cut_off: CutOff
) -> None:
    run_apart(places_are_free, backend, cut_off, backend=loop)


async def places_are_free(backend: BackendRow, cut_off: CutOff) -> None:
    async with SandboxManager(backend.config(max_concurrency=1)) as sandbox:

        async def stream() -> None:
            async with aclosing(sandbox.stream(SLEEPS)) as events:
                async for _ in events:
                    pass

        async def batch() -> None:
            async with sandbox.map([SLEEPS, "2"]) as results:
                async for _ in results:
                    pass

        works = (partial(sandbox.run, SLEEPS), partial(sandbox.call, sleeps))
        for work in (*works, stream, batch):
            await cut_off(work, lambda: sandbox.active_cells == 1)
            assert sandbox.active_cells == 0
        assert (await sandbox.run("6 * 7")).value == 42


def sleeps() -> None:
    import time

    time.sleep(600)
