"""Bytes in both directions of an exchange, as a stream of anyio."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack

import anyio
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint

from toolcell.core import CellLostError

from .link import Exchange, Kind

WINDOW_BYTES = 512 * 1024
"""Bytes that one end sends and the other has not read. When it is reached the sender
waits."""

_PIECE_BYTES = 60 * 1024
_CLOSE_SECONDS = 1.0


class ExchangeStream(ByteStream):
    """One connection, at either end of a link.

    Its errors are those of a stream: `EndOfStream` when the other end has ended its
    direction, `BrokenResourceError` when it is gone, `ClosedResourceError` after
    `aclose`.

    Args:
        exchange: Carries the bytes.
        stack: Is left with the stream.
    """

    def __init__(self, exchange: Exchange, stack: AsyncExitStack | None = None) -> None:
        self._exchange = exchange
        self._stack = stack
        self._pieces: deque[bytes] = deque()
        self._unread = 0
        self._room = WINDOW_BYTES
        self._has_ended = False
        self._is_closed = False
        self._is_at_end = False
        self._is_over = False
        # Whoever waits for something reads for both directions.
        self._hearing = anyio.Lock()
        self._receiving = anyio.ResourceGuard("reading from")
        self._sending = anyio.ResourceGuard("writing to")
        self.was_closed = False
        """True if the other end has closed both directions."""

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        """Return the next bytes, at least one and at most `max_bytes`."""
        await checkpoint()
        self._require_open()
        with self._receiving:
            await self._hear_until(lambda: bool(self._pieces) or self._is_at_end)
            self._require_open()
            if not self._pieces:
                if self._is_at_end:
                    raise anyio.EndOfStream
                raise anyio.BrokenResourceError
        piece = self._pieces.popleft()
        if piece[max_bytes:]:
            self._pieces.appendleft(piece[max_bytes:])
        data = piece[:max_bytes]
        self._unread -= len(data)
        if not self._is_over:
            self._exchange.send_soon({"room": len(data)})
        return data

    async def send(self, item: bytes) -> None:
        """Send bytes; wait while the other end does not read."""
        await checkpoint()
        self._require_open()
        if self._has_ended:
            raise anyio.ClosedResourceError
        data = memoryview(bytes(item))
        with self._sending:
            while data:
                await self._hear_until(lambda: self._room > 0)
                self._require_open()
                if self._is_over:
                    raise anyio.BrokenResourceError
                piece = data[: min(_PIECE_BYTES, self._room)]
                data = data[len(piece) :]
                self._room -= len(piece)
                await self._tell({}, bytes(piece))

    async def send_eof(self) -> None:
        """End this direction; the other end can still send."""
        self._require_open()
        with self._sending:
            if not self._has_ended:
                self._has_ended = True
                await self._tell({"eof": True})

    async def aclose(self) -> None:
        """End both directions; the other end still gets what was sent."""
        if not self._is_closed:
            self._is_closed = True
            with anyio.CancelScope(shield=True):
                await self._close()
        await checkpoint()

    async def _close(self) -> None:
        if not self._is_over:
            self._exchange.send_soon({"close": True})
            with anyio.move_on_after(_CLOSE_SECONDS):
                await self._hear_until(lambda: False)
        if self._stack is not None:
            await self._stack.aclose()

    def _require_open(self) -> None:
        if self._is_closed:
            raise anyio.ClosedResourceError

    async def _tell(self, fields: dict[str, bool], *blobs: bytes) -> None:
        try:
            await self._exchange.send(fields, *blobs)
        except CellLostError as error:
            raise anyio.BrokenResourceError(str(error)) from error

    async def _hear_until(self, is_there: Callable[[], bool]) -> None:
        """Return when something is there, or the other end is gone."""
        while not (is_there() or self._is_over):
            async with self._hearing:
                if not (is_there() or self._is_over):
                    await self._receive()

    async def _receive(self) -> None:
        try:
            kind, message = await self._exchange.receive()
        except CellLostError:
            self._is_over = True
            return
        fields = message.fields
        if kind in (Kind.END, Kind.ERROR):
            self._is_over = True
        elif message.blobs:
            self._pieces.extend(filter(None, message.blobs))
            self._unread += sum(map(len, message.blobs))
            if self._unread > WINDOW_BYTES:
                self._exchange.protocol_error(ValueError("more than was asked for"))
        elif "room" in fields:
            self._give_room(fields["room"])
        else:
            self.was_closed = "close" in fields
            self._is_at_end = True

    def _give_room(self, size: object) -> None:
        if type(size) is not int or not 0 < size <= WINDOW_BYTES - self._room:
            self._exchange.protocol_error(ValueError("room for more than was sent"))
            self._is_over = True
            return
        self._room += size


async def relay(stream: ExchangeStream, server: ByteStream) -> None:
    """Pass bytes on between a stream and a server, until one of them closes."""
    async with server, anyio.create_task_group() as tasks:

        async def back() -> None:
            if not await _pass(server, stream):
                tasks.cancel_scope.cancel()

        tasks.start_soon(back)
        if not await _pass(stream, server) or stream.was_closed:
            tasks.cancel_scope.cancel()


async def _pass(source: ByteStream, target: ByteStream) -> bool:
    """Pass bytes on; return True if the source has ended its direction."""
    try:
        async for piece in source:
            await target.send(piece)
        await target.send_eof()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return False
    return True
