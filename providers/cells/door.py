"""A port of this machine that leads to a server inside a cell."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio
from anyio.abc import ByteStream, Listener, SocketAttribute, SocketStream

from toolcell.core import CellLostError, GuardError, InvalidInputError

from .guarded_session import GuardedSession
from .thread_session import ThreadSession

_LOOPBACK = "127.0.0.1"
_OVER = (
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    CellLostError,
)


async def open_door(thread: ThreadSession, port: int) -> int:
    """Listen on a free port of the loopback interface; return it.

    Each connection is a `connect` call through the guard, and is closed at once where
    that is refused or nothing listens in the cell. Whoever may use this machine's
    loopback may connect. The door is closed with the session.

    Args:
        thread: The session.
        port: The port of the server in its cell.
    """
    listener = await thread.acall(anyio.create_tcp_listener, local_host=_LOOPBACK)
    thread.start(_serve, listener, partial(_lead, thread.guarded, port))
    attributes = listener.extra_attributes
    local: int = attributes[SocketAttribute.local_port]()
    return local


async def _serve(
    listener: Listener[SocketStream],
    lead: Callable[[ByteStream], Awaitable[None]],
) -> None:
    async with listener:
        await listener.serve(lead)


async def _lead(guarded: GuardedSession, port: int, outside: ByteStream) -> None:
    async with outside:
        try:
            inside = await guarded.connect(port)
        except (GuardError, InvalidInputError, CellLostError):
            return
        async with inside, anyio.create_task_group() as both:
            both.start_soon(_copy, outside, inside)
            both.start_soon(_copy, inside, outside)


async def _copy(source: ByteStream, target: ByteStream) -> None:
    try:
        async for piece in source:
            await target.send(piece)
        await target.send_eof()
    except _OVER:
        await target.aclose()
