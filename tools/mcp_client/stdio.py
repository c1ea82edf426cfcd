"""Speaks to an MCP server that is a program of its own, over its pipes.

The program gets the named environment and no more. It runs below
`process_reaper`, which kills it and all that it started, however the connection ends.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from toolcell.core import ConfigError
from toolcell.core.text.printable import escaped

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

EXIT_SECONDS = 2.0
"""Seconds that a program has to end after its input ended. When it is reached the
program and all that it started are killed."""

STDERR_CHARACTERS = 4_096
"""Characters of a program's standard error that are logged. When it is reached the
oldest are dropped."""

_WAITING_MESSAGES = 64
_FLUSH_SECONDS = 0.5
_REAPER = Path(__file__).with_name("process_reaper.py")
_BASE_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPCommand:
    """An MCP server that is started as a program; no shell is involved.

    It runs unconfined, as the user of this process.

    Raises:
        ConfigError: A text cannot be given to a program.
    """

    command: str
    """The program: a path, or a name that is looked for in PATH of `env`."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Its whole environment, besides LANG and a PATH of the system's folders."""

    folder: Path | None = None
    """The folder it runs in; None: that of this process."""

    def __post_init__(self) -> None:
        texts = (self.command, *self.args, *self.env, *self.env.values())
        odd = any("\0" in text for text in texts)
        if odd or not self.command or any("=" in name for name in self.env):
            raise ConfigError(
                "the command of an MCP server cannot be started",
                hint="give a command; no NUL anywhere, no `=` in names of variables",
            )

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the program."""
        return _BASE_ENVIRONMENT | dict(self.env)


@asynccontextmanager
async def open_command(
    server: MCPCommand, max_bytes: int
) -> AsyncGenerator[TransportStreams, None]:
    """Start the program; its messages come and go over the streams.

    Args:
        server: The program to start.
        max_bytes: Bytes of one message. When it is reached the connection ends.
    """
    process = await anyio.open_process(
        _argv(server),
        env=server.environment,
        cwd=server.folder,
        start_new_session=True,
    )
    # Before the tasks exist nothing is awaited: a cancellation would lose the process.
    to_session, incoming = anyio.create_memory_object_stream[
        "SessionMessage | Exception"
    ]()
    outgoing, from_session = anyio.create_memory_object_stream["SessionMessage"](
        _WAITING_MESSAGES
    )
    written = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, process, to_session, max_bytes)
        tasks.start_soon(_write, process, from_session, written)
        tasks.start_soon(_log_errors, process, server.command)
        try:
            yield incoming, outgoing
        finally:
            with anyio.CancelScope(shield=True):
                incoming.close()
                outgoing.close()
                with anyio.move_on_after(_FLUSH_SECONDS):
                    await written.wait()
                await _end(process)
            tasks.cancel_scope.cancel()


def _argv(server: MCPCommand) -> list[str]:
    command = [server.command, *server.args]
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", str(_REAPER), str(os.getpid()), *command]


async def _read(
    process: Process,
    to_session: MemoryObjectSendStream[SessionMessage | Exception],
    max_bytes: int,
) -> None:
    from .message_limits import ConnectionLost, Pace, parse

    line, pace = bytearray(), Pace()
    try:
        async with to_session:
            async for chunk in _pipe(process.stdout):
                first, *others = chunk.split(b"\n")
                line += first
                for part in others:
                    if line.strip():
                        await to_session.send(await parse(bytes(line), pace))
                    line[:] = part
                if len(line) > max_bytes:
                    await to_session.send(
                        ConnectionLost(f"sent more than {max_bytes:,} bytes")
                    )
                    break
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass
    finally:
        await _drain(_pipe(process.stdout))


async def _write(
    process: Process,
    from_session: MemoryObjectReceiveStream[SessionMessage],
    written: anyio.Event,
) -> None:
    assert process.stdin is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        async with from_session:
            async for each in from_session:
                text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(text.encode() + b"\n")
    written.set()


async def _log_errors(process: Process, command: str) -> None:
    """Read standard error, so that the program never waits for a reader."""
    tail = b""
    try:
        async for chunk in _pipe(process.stderr):
            tail = (tail + chunk)[-STDERR_CHARACTERS:]
    finally:
        await _drain(_pipe(process.stderr))
    if tail.strip():
        text = escaped(tail.decode("utf-8", "replace").strip(), STDERR_CHARACTERS)
        _log.info("standard error of the MCP server %s: %s", command, text)


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


async def _end(process: Process) -> None:
    """Ask the program to end by ending its input, then kill all of it."""
    assert process.stdin is not None
    with suppress(anyio.BrokenResourceError, OSError):
        await process.stdin.aclose()
    for kill in (process.terminate, partial(_kill_group, process)):
        with anyio.move_on_after(EXIT_SECONDS):
            await process.wait()
            return
        with suppress(ProcessLookupError):
            kill()
    await process.wait()


def _kill_group(process: Process) -> None:
    os.killpg(process.pid, signal.SIGKILL)
