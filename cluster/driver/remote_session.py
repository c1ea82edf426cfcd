"""Requests to a session on a node."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from toolcell.core import CellLostError

from ..wire.file_chunks import MAX_HEADERS_BYTES, receive_file, send_file
from ..wire.link import Exchange, Link
from ..wire.message import WireMessage
from .protocol_errors import closing_link_on_error
from .runs import last_message, next_part

Value = TypeVar("Value")


class RemoteSession:
    """A session as its node keeps it: asks for what it is to do, and notes its state.

    Args:
        link: Leads to the node.
        number: Its number on the link.
    """

    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self.number = number
        """Its number on the link."""

        self.alive = True
        """False once an answer, or the lack of one, said that the cell is gone."""

        self.paused = False
        """True from `pause` to `resume`, as far as this process knows."""

    def fields(self, operation: str, **more: Any) -> dict[str, Any]:
        """Return the fields of a request to the session."""
        return {"op": f"session.{operation}", "session": self.number, **more}

    def note(self, answer: dict[str, Any]) -> None:
        """Note what an answer says of the session."""
        self.alive = bool(answer.get("alive", True))
        self.paused = bool(answer.get("paused", False))

    @asynccontextmanager
    async def exchange(
        self, operation: str, *blobs: bytes, **fields: Any
    ) -> AsyncIterator[Exchange]:
        """Open an exchange for something that the session is to do."""
        asked = self.fields(operation, **fields)
        try:
            async with self._link.exchange(asked, blobs) as exchange:
                yield exchange
        except CellLostError:
            self.alive = False
            raise

    async def ask(self, operation: str, *blobs: bytes, **fields: Any) -> WireMessage:
        """Return the node's answer to a request."""
        async with self.exchange(operation, *blobs, **fields) as exchange:
            return await self._end(exchange)

    async def value(
        self,
        read: Callable[[WireMessage], Value],
        operation: str,
        *blobs: bytes,
        **fields: Any,
    ) -> Value:
        """Return what is to be read in the node's answer to a request."""
        return self.read(read, await self.ask(operation, *blobs, **fields))

    def read(self, read: Callable[[WireMessage], Value], message: WireMessage) -> Value:
        """Return what a message holds; one that breaks the protocol ends the link."""
        with closing_link_on_error(self._link):
            return read(message)

    async def send(self, archive: Path, operation: str, **fields: Any) -> WireMessage:
        """Send an archive to the node; return what came of it."""
        async with self.exchange(operation, **fields) as exchange:
            await send_file(exchange, partial(next_part, exchange), archive)
            return await self._end(exchange)

    async def fetch(
        self, archive: Path, operation: str, *, max_bytes: int, **fields: Any
    ) -> WireMessage:
        """Write an archive that the node sends; return what it says of it."""
        fields["max_bytes"] = max_bytes
        most = max_bytes + MAX_HEADERS_BYTES
        async with self.exchange(operation, **fields) as exchange:
            await receive_file(exchange, partial(next_part, exchange), archive, most)
            return await self._end(exchange)

    async def _end(self, exchange: Exchange) -> WireMessage:
        message = await last_message(exchange)
        self.note(message.fields)
        return message
