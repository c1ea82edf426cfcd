"""Speaks to an MCP server that is a program in a cell, over a command's pipes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio

from toolcell.core import CellLostError, InvalidInputError, SandboxError
from toolcell.sandbox import Limits, SandboxConfig, SandboxManager, SandboxSession
from toolcell.sandbox.spi import MEMORY_KILL

from .command import MCPCommand
from .last_words import LastWords
from .message_limits import ConnectionLost
from .pipes import EXIT_SECONDS, MessagePipes

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

    from toolcell.sandbox.spi import SandboxProcess

LIMITS = Limits(open_files=1_024, connections=100_000, network_bytes=2**40)
"""The limits of a server, where its cell names none."""

_LONGEST_SECONDS = 86_400.0 * 30


def server_config(cell: SandboxConfig | None) -> SandboxConfig:
    """Return the configuration of the cell that a server runs in.

    Its session lives as long as the connection, 30 days at most.
    """
    cell = cell or SandboxConfig()
    named = {name: getattr(cell.limits, name) for name in cell.limits.model_fields_set}
    return cell.model_copy(
        update={
            "limits": LIMITS.model_copy(update=named),
            "pool": 0,
            "programs_per_cell": 1,
            "session_idle_seconds": _LONGEST_SECONDS,
            "session_lifetime_seconds": _LONGEST_SECONDS,
        }
    )


@asynccontextmanager
async def open_cell(server: MCPCommand) -> AsyncGenerator[SandboxSession, None]:
    """Open a cell for a server; its packages are installed before.

    Raises:
        ConfigError, SandboxError: There is no such cell.
    """
    async with (
        SandboxManager(server_config(server.cell)) as sandbox,
        sandbox.session() as session,
    ):
        yield session


@asynccontextmanager
async def open_in_cell(
    server: MCPCommand, session: SandboxSession, max_bytes: int, words: LastWords
) -> AsyncGenerator[TransportStreams, None]:
    """Start the program; its messages come and go over the streams.

    Args:
        server: The program to start.
        session: The cell.
        max_bytes: Bytes of one message. When it is reached the connection ends.
        words: Told what the program says on standard error, and how it ends.

    Raises:
        ConnectionLost: It cannot be started.
    """
    process = await _start(server, session, words)
    pipes = MessagePipes(max_bytes, words)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, process, pipes, words)
        tasks.start_soon(pipes.write, process.write)
        try:
            yield pipes.incoming, pipes.outgoing
        finally:
            with anyio.CancelScope(shield=True), suppress(CellLostError):
                await pipes.aclose()
                await _end(process, words)
            tasks.cancel_scope.cancel()


async def _start(
    server: MCPCommand, session: SandboxSession, words: LastWords
) -> SandboxProcess:
    try:
        return await session.exec(
            (server.command, *server.args),
            stdin="pipe",
            env=server.env,
        )
    except (InvalidInputError, SandboxError) as error:
        words.refusal = str(error.details.get("reason") or error.hint or "")
        raise ConnectionLost(f"cannot be started: {error.message}") from error


async def _read(process: SandboxProcess, pipes: MessagePipes, words: LastWords) -> None:
    try:
        async with aclosing(process.output()) as pieces:
            async for stream, data in pieces:
                if stream == "stdout":
                    await pipes.feed(data)
                else:
                    words.add(data)
    finally:
        pipes.end()


async def _end(process: SandboxProcess, words: LastWords) -> None:
    """Ask the program to end by ending its input, then kill all of it."""
    await process.close_stdin()
    with anyio.move_on_after(EXIT_SECONDS):
        await process.ended()
        result = await process.wait()
        code = result.exit_code
        words.end = result.status if code is None else f"exit code {code}"
        words.limit = result.limit_reached
        if MEMORY_KILL in result.warnings:
            words.limit = "memory"
            words.end += f"; {MEMORY_KILL}"
        return
    await process.kill()
    with anyio.move_on_after(EXIT_SECONDS):
        await process.ended()
