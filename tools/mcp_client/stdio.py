"""Speaks to an MCP server that is a program of this machine, over its pipes.

The program gets the named environment and no more. It runs below
`process_reaper`, which kills it and all that it started, however the connection ends.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio.abc import ByteReceiveStream, Process

from toolcell.core.paths import SYSTEM_PATH

from .command import MCPCommand
from .last_words import LastWords
from .pipes import EXIT_SECONDS, MessagePipes

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

_REAPER = Path(__file__).with_name("process_reaper.py")
_BASE_ENVIRONMENT = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8"}


@asynccontextmanager
async def open_on_host(
    server: MCPCommand, max_bytes: int, words: LastWords
) -> AsyncGenerator[TransportStreams, None]:
    """Start the program unconfined; its messages come and go over the streams.

    Args:
        server: The program to start.
        max_bytes: Bytes of one message. When it is reached the connection ends.
        words: Told what the program says on standard error, and how it ends.
    """
    process = await anyio.open_process(
        _argv(server),
        env=_BASE_ENVIRONMENT | dict(server.env),
        cwd=server.folder,
        start_new_session=True,
    )
    # Before the tasks exist nothing is awaited: a cancellation would lose the process.
    pipes, closed = MessagePipes(max_bytes, words), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, process, pipes)
        tasks.start_soon(_write, process, pipes)
        tasks.start_soon(_read_errors, process, words, closed)
        try:
            yield pipes.incoming, pipes.outgoing
        finally:
            with anyio.CancelScope(shield=True):
                await pipes.aclose()
                await _end(process, words)
                with anyio.move_on_after(EXIT_SECONDS):
                    await closed.wait()
            tasks.cancel_scope.cancel()


def _argv(server: MCPCommand) -> list[str]:
    command = [server.command, *server.args]
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", str(_REAPER), str(os.getpid()), *command]


async def _read(process: Process, pipes: MessagePipes) -> None:
    try:
        async for chunk in _pipe(process.stdout):
            await pipes.feed(chunk)
    finally:
        pipes.end()
        await _drain(_pipe(process.stdout))


async def _write(process: Process, pipes: MessagePipes) -> None:
    assert process.stdin is not None
    await pipes.write(process.stdin.send)


async def _read_errors(process: Process, words: LastWords, closed: anyio.Event) -> None:
    """Read standard error, so that the program never waits for a reader."""
    try:
        async for chunk in _pipe(process.stderr):
            words.add(chunk)
    finally:
        await _drain(_pipe(process.stderr))
        closed.set()


async def _drain(stream: ByteReceiveStream) -> None:
    """Read to the end: a program that cannot write cannot end, nor be waited for."""
    with (
        anyio.move_on_after(3 * EXIT_SECONDS, shield=True),
        suppress(anyio.EndOfStream, anyio.BrokenResourceError),
    ):
        while True:
            await stream.receive()


def _pipe(stream: ByteReceiveStream | None) -> ByteReceiveStream:
    assert stream is not None
    return stream


async def _end(process: Process, words: LastWords) -> None:
    """Ask the program to end by ending its input, then kill all of it."""
    assert process.stdin is not None
    with suppress(anyio.BrokenResourceError, OSError):
        await process.stdin.aclose()
    with anyio.move_on_after(EXIT_SECONDS):
        words.end = f"exit code {await process.wait()}"
        return
    for kill in (process.terminate, partial(_kill_group, process)):
        with suppress(ProcessLookupError):
            kill()
        with anyio.move_on_after(EXIT_SECONDS):
            await process.wait()
            return
    await process.wait()


def _kill_group(process: Process) -> None:
    os.killpg(process.pid, signal.SIGKILL)
