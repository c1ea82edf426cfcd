"""Messages of MCP over the pipes of a program, wherever it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
from anyio import create_memory_object_stream

from toolcell.core import ToolcellError

from .last_words import LastWords

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

    Incoming = SessionMessage | Exception

EXIT_SECONDS = 2.0
"""Seconds that a program has to end after its input ended. When it is reached the
program and all that it started are killed."""

FLUSH_SECONDS = 0.5
"""Seconds in which messages that wait are still written, when a connection ends. When
it is reached the rest is dropped."""

_WAITING_MESSAGES = 64


class MessagePipes:
    """The messages between a session and a program, as lines.

    Args:
        max_bytes: Bytes of one message. When it is reached the connection ends.
        words: Told the lines that are no messages.
    """

    def __init__(self, max_bytes: int, words: LastWords) -> None:
        from .message_limits import Pace

        self._to_session, self.incoming = create_memory_object_stream["Incoming"]()
        self.outgoing, self._from_session = create_memory_object_stream[
            "SessionMessage"
        ](_WAITING_MESSAGES)
        self._max_bytes = max_bytes
        self._words = words
        self._line = bytearray()
        self._pace = Pace()
        self._open = True
        self._written = anyio.Event()

    async def feed(self, chunk: bytes) -> None:
        """Take a piece of standard output; once nobody listens it is dropped."""
        if not self._open:
            return
        try:
            await self._feed(chunk)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self.end()

    async def _feed(self, chunk: bytes) -> None:
        from .message_limits import ConnectionLost, parse

        first, *others = chunk.split(b"\n")
        self._line += first
        for part in others:
            if self._line.strip():
                message = await parse(bytes(self._line), self._pace)
                if isinstance(message, ValueError):
                    self._words.add_line(bytes(self._line))
                await self._to_session.send(message)
            self._line[:] = part
        if len(self._line) > self._max_bytes:
            reason = f"sent more than {self._max_bytes:,} bytes"
            await self._to_session.send(ConnectionLost(reason))
            self._line.clear()
            self.end()

    def end(self) -> None:
        """Tell the session that nothing more comes."""
        self._open = False
        if self._line.strip():
            self._words.add_line(bytes(self._line))
        self._line.clear()
        self._to_session.close()

    async def write(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Write the session's messages until it ends, or nobody reads them.

        Args:
            send: Writes to standard input.
        """
        broken = (anyio.BrokenResourceError, anyio.ClosedResourceError)
        with suppress(*broken, OSError, ToolcellError):
            async with self._from_session:
                async for message in self._from_session:
                    text = message.message.model_dump_json(
                        by_alias=True, exclude_unset=True
                    )
                    await send(text.encode() + b"\n")
        self._written.set()

    async def aclose(self) -> None:
        """End both ways; what waits to be written is written first."""
        self.incoming.close()
        self.outgoing.close()
        with anyio.move_on_after(FLUSH_SECONDS):
            await self._written.wait()
