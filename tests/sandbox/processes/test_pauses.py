"""Pauses of a session: nothing runs in them, and everything goes on after; attacked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import anyio
import pytest

from toolcell.core import CellLostError, InvalidInputError
from toolcell.sandbox import SandboxManager, SandboxSession, Session
from toolcell.sandbox.spi import SandboxProcess

from ...conftest import BackendRow

pytestmark = pytest.mark.anyio

COUNT = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.01; done"


async def test_a_command_stops_and_goes_on(session: SandboxSession) -> None:
    process = await session.exec(COUNT, background=True)
    await numbers_until(process, 1)
    await session.pause()
    assert session.paused
    # What it had said comes first.
    looks = [await numbers_until(process, 10**9, seconds=0.5) for _ in range(6)]
    before = looks[-1]
    assert looks.count(before) > 3
    await session.resume()
    assert not session.paused
    await numbers_until(process, before + 3)
    await process.kill()


async def numbers_until(
    process: SandboxProcess, wanted: int, seconds: float = 60
) -> int:
    """Follow a counter up to a number, or for some seconds; return its last one."""
    last, text = 0, b""
    with anyio.move_on_after(seconds):
        async with aclosing(process.output()) as output:
            async for _, data in output:
                *lines, text = (text + data).split(b"\n")
                last = int(lines[-1]) if lines else last
                if last >= wanted:
                    break
    return last


async def test_variables_files_and_branches_are_as_before(
    session: SandboxSession,
) -> None:
    await session.run("x = 41")
    branch = await session.fork()
    await session.write_file("a", b"1")
    await session.pause()
    await session.pause()
    await session.resume()
    await session.resume()

    assert (await session.run("x + 1")).value == 42
    assert (await branch.run("x")).value == 41
    assert await session.read_file("a") == b"1"


async def test_what_a_pause_refuses(session: SandboxSession) -> None:
    await session.run("1")
    await session.pause()
    for call in (
        lambda: session.run("1"),
        lambda: session.exec("true"),
        lambda: session.connect(80),
        lambda: session.fork(),
        lambda: session.read_file("a"),
        lambda: session.list_files(),
    ):
        with pytest.raises(InvalidInputError, match="paused"):
            await call()
    await session.resume()
    assert (await session.run("1 + 1")).value == 2


async def test_a_pause_waits_for_the_run_under_way(session: SandboxSession) -> None:
    await session.run("1")
    results = []

    async def run() -> None:
        results.append(await session.run("import time; time.sleep(0.5); 'whole'"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        await session.pause()
        assert [result.value for result in results] == ["whole"]
    await session.resume()


async def test_time_limits_of_commands_stand_still(session: SandboxSession) -> None:
    process = await session.exec(["sleep", "600"], timeout_seconds=2)
    waits = "until test -e go; do sleep 0.01; done; echo done"
    quick = await session.exec(waits, timeout_seconds=3)
    await session.pause()
    await anyio.sleep(3.5)
    await session.resume()
    await session.write_file("go", b"")

    assert (await quick.wait()).stdout == "done\n"
    assert (await process.wait()).status == "timeout"


async def test_a_terminal_and_its_jobs_go_on(session: SandboxSession) -> None:
    shell = await session.exec(["bash", "--norc", "-i"], pty=(24, 80))
    stop = b"sleep 600 & kill -STOP $!; "
    # The signal takes effect when the process has the processor.
    stopped = b"until jobs -s | grep -q .; do :; done; "
    await shell.write(stop + stopped + b"echo rea''dy; ")
    await shell.write(b"read line; jobs; echo said $line\n")
    await until_it_says(shell, b"ready")
    await session.pause()
    await session.resume()
    await shell.write(b"hello\n")
    text = await until_it_says(shell, b"said hello")
    # The job that the program itself had stopped is still stopped.
    assert b"Stopped" in text


async def until_it_says(process: SandboxProcess, words: bytes) -> bytes:
    """Return the output up to some words."""
    text = b""
    with anyio.fail_after(60):
        async with aclosing(process.output()) as output:
            async for _, data in output:
                text += data
                if words in text:
                    break
    return text


async def test_a_connection_waits_and_goes_on(session: SandboxSession) -> None:
    code = (
        "import socket; door = socket.create_server(('127.0.0.1', 8000));"
        "print('listening', flush=True); peer = door.accept()[0]\n"
        "while data := peer.recv(65536): peer.sendall(data)"
    )
    server = await session.exec(["python3", "-c", code])
    assert await anext(server.output()) == ("stdout", b"listening\n")
    async with await session.connect(8000) as stream:
        await session.pause()
        await stream.send(b"later")
        with anyio.move_on_after(0.5) as early:
            await stream.receive()
        assert early.cancelled_caught
        await session.resume()
        assert await stream.receive() == b"later"


async def test_a_pause_does_not_count_as_idle(backend: BackendRow) -> None:
    config = backend.config(session_idle_seconds=1)
    async with SandboxManager(config) as manager, manager.session() as session:
        await session.pause()
        await anyio.sleep(2.5)
        await session.resume()
        assert (await session.run("1 + 1")).value == 2


async def test_a_pause_does_not_extend_a_lifetime(backend: BackendRow) -> None:
    config = backend.config(session_lifetime_seconds=3)
    async with SandboxManager(config) as manager, manager.session() as session:
        await session.pause()
        await anyio.sleep(3.5)
        with pytest.raises(CellLostError, match="open for 3 seconds"):
            await session.resume()


async def test_a_paused_session_closes(backend: BackendRow) -> None:
    async with SandboxManager(backend.config()) as manager:
        async with manager.session() as session:
            process = await session.exec(["sleep", "600"])
            await session.pause()
        with pytest.raises(CellLostError), anyio.fail_after(60):
            await process.wait()
        assert manager.active_cells == 0


HIDE = r"""
import os, signal, sys, threading, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
def beat():
    number = 0
    while True:
        number += 1
        os.pwrite(beats, b'%09d' % number, 0)
def wake():
    while True:
        for pid in range(1, 400):
            try: os.kill(pid, signal.SIGCONT)
            except OSError: pass
if os.fork() == 0:
    os.setsid()
    wake()
if os.fork() == 0:
    while True:
        # A chain of processes, each of which lives for a moment.
        if os.fork():
            os._exit(0)
        os.setsid()
beats = os.open('beat', os.O_RDWR | os.O_CREAT, 0o600)
for target in (wake, beat):
    threading.Thread(target=target).start()
print('begun', flush=True)
"""


@pytest.fixture
async def held(backend: BackendRow) -> AsyncIterator[Session]:
    """A session that the test looks into."""
    async with (
        SandboxManager(backend.config()) as manager,
        manager.session() as session,
    ):
        yield session


@pytest.mark.promise("E-45")
async def test_nothing_runs_in_a_pause_whatever_it_tries(held: Session) -> None:
    """A process that forks as fast as it can, ignores signals and wakes the others."""
    hiding = await held.exec(["python3", "-c", HIDE], background=True)
    async for _, data in hiding.output():
        assert data == b"begun\n"
        break
    for _ in range(5):
        await held.pause()
        before = await beats(held)
        await anyio.sleep(0.5)
        assert await beats(held) == before
        await held.resume()
        await until_it_beats(held, before)


async def beats(session: Session) -> bytes:
    """Return what the program last wrote; the supervisor reads files in a pause too."""
    shared = session._shared
    from toolcell.sandbox.client.workdir import WorkDir

    return await WorkDir(shared.cell, "main").read("beat")


async def until_it_beats(session: Session, before: bytes) -> None:
    with anyio.fail_after(60):
        while await beats(session) in (before, b""):
            await anyio.sleep(0.01)
