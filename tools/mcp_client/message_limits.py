"""Messages of an MCP server, bounded before the MCP library acts on them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio

from toolcell.core.text.json_size import count_values

from .kept_results import KeptResults
from .list_parts import ListParts, PartsOrServer
from .odd_parts import set_odd_parts_aside

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectSendStream
    from mcp.client._transport import ReadStream, TransportStreams
    from mcp.shared.message import SessionMessage

    Incoming = SessionMessage | Exception

MESSAGES_PER_SECOND = 100
"""Unrequested messages of a server, besides one for each call. When it is reached
further ones count against `MESSAGES_AT_ONCE`."""

MESSAGES_AT_ONCE = 1_000
"""Unrequested messages of a server at once. When it is reached the connection ends."""

UNREADABLE_MESSAGES = 100
"""Messages of a connection that are not JSON-RPC. When it is reached it ends."""

MESSAGE_VALUES = 50_000
"""Values in one message of a server. When it is exceeded the connection ends: to read
them, and all that is done with them, would keep the event loop from everybody."""

SECONDS_PER_VALUE = 20e-6
"""Seconds that the next large message of a server waits, for each value of this one
above `SMALL_VALUES`. To read it takes the event loop a tenth of that."""

SMALL_VALUES = 1_000
"""Values of a message that waits for none, and that none waits for."""

# Other notifications are dropped.
_HEARD = frozenset(
    f"notifications/{name}"
    for name in (
        "cancelled",
        "progress",
        "subscriptions/acknowledged",
        "tools/list_changed",
    )
)


class ConnectionLost(Exception):
    """A connection is over.

    Args:
        reason: The reason, as an act of the server: `sent ...`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class MessageBudget:
    """The number of messages that a server may still send."""

    def __init__(self) -> None:
        self._left = float(MESSAGES_AT_ONCE)
        self._since = anyio.current_time()

    def grant(self) -> None:
        """Allow one answer more."""
        self._left += 1

    def spend(self) -> None:
        """Count one message.

        Raises:
            ConnectionLost: There were too many.
        """
        now = anyio.current_time()
        if self._left < MESSAGES_AT_ONCE:
            earned = (now - self._since) * MESSAGES_PER_SECOND
            self._left = min(MESSAGES_AT_ONCE, self._left + earned)
        self._since = now
        self._left -= 1
        if self._left < 0:
            raise ConnectionLost("sent too many messages that nobody asked for")


class Pace:
    """Leaves the event loop to others, whatever one server sends."""

    def __init__(self) -> None:
        self._due = 0.0

    async def admit(self, values: int) -> None:
        """Wait until a message of so many values may be read."""
        if values <= SMALL_VALUES:
            return
        now = anyio.current_time()
        begins = max(self._due, now)
        self._due = begins + (values - SMALL_VALUES) * SECONDS_PER_VALUE
        await anyio.sleep(begins - now)


async def parse(line: bytes, pace: Pace) -> Incoming:
    """Return a message, or its refusal: `ConnectionLost` if it has many values."""
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter
    from pydantic_core import from_json

    values = count_values(line, MESSAGE_VALUES)
    if values > MESSAGE_VALUES:
        return ConnectionLost(f"sent a message of more than {MESSAGE_VALUES} values")
    await pace.admit(values)
    try:
        # To validate the text itself takes six times as long.
        return SessionMessage(jsonrpc_message_adapter.validate_python(from_json(line)))
    except ValueError as error:
        return error


@asynccontextmanager
async def limit_messages(
    transport: AbstractAsyncContextManager[TransportStreams],
    budget: MessageBudget,
    kept: KeptResults,
    parts: ListParts,
    version: Callable[[], str | None],
) -> AsyncGenerator[TransportStreams, None]:
    """Open a transport; its end, a flood or unreadable messages end the body.

    Args:
        transport: The transport.
        budget: The number of messages that the server may send.
        kept: Has large results of it.
        parts: Takes the pages of lists.
        version: Returns the version of the protocol; None: it is not agreed on yet.

    Raises:
        ConnectionLost: In a group, when that is the reason of the end.
    """
    async with transport as (read, write):
        to_session, incoming = anyio.create_memory_object_stream["Incoming"]()
        async with incoming, anyio.create_task_group() as tasks:
            tasks.start_soon(_pump, read, to_session, budget, kept, parts, version)
            yield incoming, PartsOrServer(parts, to_session.send, write, version)
            tasks.cancel_scope.cancel()


async def _pump(
    read: ReadStream[Incoming],
    to_session: MemoryObjectSendStream[Incoming],
    budget: MessageBudget,
    kept: KeptResults,
    parts: ListParts,
    version: Callable[[], str | None],
) -> None:
    from mcp.types import JSONRPCNotification, JSONRPCResponse

    unreadable = 0
    # The session closes its end when it is over.
    with suppress(anyio.BrokenResourceError):
        async with to_session:
            async for arrived in read:
                budget.spend()
                if isinstance(arrived, ConnectionLost):
                    raise arrived
                if isinstance(arrived, Exception):
                    unreadable += 1
                    if unreadable >= UNREADABLE_MESSAGES:
                        raise ConnectionLost(
                            f"sent {unreadable} messages that are no JSON-RPC"
                        )
                    continue
                message = arrived.message
                if isinstance(message, JSONRPCNotification):
                    if message.method not in _HEARD:
                        continue
                elif isinstance(message, JSONRPCResponse):
                    message.result = parts.cut(kept.take(message.result))
                    await set_odd_parts_aside(message.result, version())
                await to_session.send(arrived)
            if to_session.statistics().open_receive_streams:
                raise ConnectionLost("ended the connection")
