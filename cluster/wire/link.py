"""One connection between a driver and a node, with many exchanges at once.

Theory of operation. A frame is its kind, the number of its exchange, a length, and at
most 64 KiB of a message. The driver opens exchanges; both ends send messages in them,
and the node ends each by a last message or an error. One writer takes pieces of all
exchanges in turn, so a large file holds up nobody. An end that hears nothing for
`lost_seconds` gives the link up; each asks for a sign of life four times as often.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from enum import IntEnum
from typing import Any

import anyio
import anyio.abc
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream

from toolcell.core import CellLostError

from .message import MAX_MESSAGE_BYTES, Message, WireError, decode_message
from .message import encode_message as encode

PIECE_BYTES = 64 * 1024
"""Bytes of a message in one frame. When it is exceeded the link ends."""

_TURN_BYTES = 256 * 1024
_END_SECONDS = 15.0
_MORE = 0x80
_PREFIX = struct.Struct(">BII")


class Kind(IntEnum):
    """The kinds of frames."""

    PING = 0
    OPEN = 1
    DATA = 2
    END = 3
    ERROR = 4
    CANCEL = 5
    PONG = 6


class Exchange:
    """The messages of one request, at either end of a link."""

    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self.number = number
        """Its number on the link."""

        self.ended = False
        """True if the last message was read, or sent, or the link is gone."""

        self._sender, self._inbox = anyio.create_memory_object_stream[
            tuple[Kind, Message]
        ](math.inf)
        self.scope = anyio.CancelScope()

    async def send(self, fields: dict[str, Any], *blobs: bytes) -> None:
        """Send a message; return when it is on its way.

        Raises:
            CellLostError: The link is gone.
            InvalidInputError: It cannot be sent.
        """
        await self._link.send(Kind.DATA, self.number, fields, blobs)

    def send_soon(self, fields: dict[str, Any], *blobs: bytes) -> None:
        """Put a message in line and do not wait. Raises InvalidInputError."""
        self._link.put(Kind.DATA, self.number, encode(fields, blobs))

    def finish(self, kind: Kind, fields: dict[str, Any], *blobs: bytes) -> None:
        """Send the last message, at the node. Raises InvalidInputError."""
        data = encode(fields, blobs)
        self.ended = True
        self._link.put(kind, self.number, data)

    async def receive(self) -> tuple[Kind, Message]:
        """Return the next message. Raises CellLostError if the link is gone."""
        try:
            kind, message = await self._inbox.receive()
        except anyio.EndOfStream:
            raise self._link.lost_error() from None
        if kind in (Kind.END, Kind.ERROR):
            self.ended = True
        return kind, message

    def lost_error(self) -> CellLostError:
        """Return the error of whoever waits for the other end."""
        return self._link.lost_error()

    def nonsense(self, error: Exception) -> CellLostError:
        """Give the link up, since the other end breaks the protocol; return why."""
        self._link.give_up(f"it sent nonsense: {error}")
        return self._link.lost_error()

    def add(self, kind: Kind, message: Message) -> None:
        """Take a message from the link."""
        self._sender.send_nowait((kind, message))

    def close(self) -> None:
        """Be over, with the link."""
        self.ended = True
        self._sender.close()

    def forget(self) -> None:
        """Drop what was not read."""
        self._sender.close()
        self._inbox.close()


Serve = Callable[[Exchange, Message], Awaitable[None]]


class Link:
    """Carries exchanges over an authenticated connection.

    Args:
        stream: The connection.
        reader: Reads from it, with what was read already.
        name: The other end, for errors.
        lost_seconds: Seconds without a sign of life until the link is given up.
        serve: Answers one exchange of a driver; None: this is the driver.
    """

    def __init__(
        self,
        stream: ByteStream,
        reader: BufferedByteReceiveStream,
        *,
        name: str,
        lost_seconds: float,
        serve: Serve | None = None,
    ) -> None:
        self._stream = stream
        self._reader = reader
        self._name = name
        self._lost_seconds = lost_seconds
        self._serve = serve
        self._exchanges: dict[int, Exchange] = {}
        self._parts: dict[int, bytearray] = {}
        # Frames that wait, by exchange, in the order of their turns.
        self._lines: dict[int, deque[_Sending]] = {}
        self._work = anyio.Event()
        self._made = 0
        self.lost = ""
        """Why the link is gone; empty while it is there."""

    async def run(self) -> None:
        """Carry messages until the link is gone; end all exchanges then."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write)
                tasks.start_soon(self._ask_for_life)
                self._tasks = tasks
                await self._read()
                tasks.cancel_scope.cancel()
        finally:
            self.lost = self.lost or "the link was closed"
            for exchange in self._exchanges.values():
                exchange.close()
                exchange.scope.cancel()
            for line in self._lines.values():
                for sending in line:
                    sending.sent.set()
            self._lines.clear()
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(self._stream)

    def lost_error(self) -> CellLostError:
        """Return the error of whoever waits for the other end."""
        return CellLostError(
            f"the node {self._name} is lost: {self.lost or 'the link was closed'}",
            hint="run it again; whether it had an effect is unknown",
            details={"reason": "node_lost", "node": self._name},
        )

    @asynccontextmanager
    async def exchange(
        self, fields: dict[str, Any], blobs: Sequence[bytes] = ()
    ) -> AsyncIterator[Exchange]:
        """Open an exchange; leaving it early cancels it, and waits for its end.

        Raises:
            CellLostError: The link is gone.
            InvalidInputError: It cannot be sent.
        """
        data = encode(fields, blobs)
        if self.lost:
            raise self.lost_error()
        self._made += 1
        number = self._made
        exchange = self._exchanges[number] = Exchange(self, number)
        try:
            await self._deliver(Kind.OPEN, number, data)
            yield exchange
        finally:
            if not exchange.ended:
                with anyio.CancelScope(shield=True):
                    await self._cancel(exchange, number)
            self._exchanges.pop(number, None)
            exchange.forget()

    async def _cancel(self, exchange: Exchange, number: int) -> None:
        self.put(Kind.CANCEL, number, b"")
        with anyio.move_on_after(_END_SECONDS):
            while not exchange.ended:
                try:
                    await exchange.receive()
                except CellLostError:
                    return

    async def send(
        self, kind: Kind, number: int, fields: dict[str, Any], blobs: Sequence[bytes]
    ) -> None:
        """Send a message; return when it is on its way.

        Raises:
            CellLostError: The link is gone.
            InvalidInputError: It cannot be sent.
        """
        await self._deliver(kind, number, encode(fields, blobs))

    async def _deliver(self, kind: Kind, number: int, data: bytes) -> None:
        await self.put(kind, number, data).wait()
        if self.lost:
            raise self.lost_error()

    def put(self, kind: Kind, number: int, data: bytes) -> anyio.Event:
        """Put a message in line; return what is set when it is on its way."""
        sending = _Sending(kind, number, data)
        if self.lost:
            sending.sent.set()
        else:
            self._lines.setdefault(number, deque()).append(sending)
            self._work.set()
        return sending.sent

    async def _write(self) -> None:
        while True:
            await self._work.wait()
            self._work = anyio.Event()
            while self._lines:
                pieces, done = self._next_pieces()
                try:
                    with anyio.fail_after(self._lost_seconds):
                        await self._stream.send(pieces)
                except (OSError, TimeoutError, anyio.BrokenResourceError) as error:
                    self.give_up(f"it takes nothing: {type(error).__name__}")
                    return
                for each in done:
                    each.sent.set()

    def _next_pieces(self) -> tuple[bytes, list[_Sending]]:
        """Take a piece of each exchange in turn, for one write."""
        pieces: list[bytes] = []
        done: list[_Sending] = []
        size = 0
        while self._lines and size < _TURN_BYTES:
            number = next(iter(self._lines))
            line = self._lines.pop(number)
            piece = line[0].piece()
            pieces.append(piece)
            size += len(piece)
            if line[0].is_done:
                done.append(line.popleft())
            if line:
                self._lines[number] = line
        return b"".join(pieces), done

    async def _ask_for_life(self) -> None:
        while True:
            await anyio.sleep(self._lost_seconds / 4)
            self.put(Kind.PING, 0, b"")

    def give_up(self, why: str) -> None:
        """End the link, and all exchanges with it."""
        self.lost = self.lost or why
        self._tasks.cancel_scope.cancel()

    async def _read(self) -> None:
        try:
            while True:
                with anyio.fail_after(self._lost_seconds):
                    prefix = await self._reader.receive_exactly(_PREFIX.size)
                    code, number, size = _PREFIX.unpack(prefix)
                    if size > PIECE_BYTES:
                        raise WireError(f"a piece of {size} bytes")
                    data = b""
                    if size:
                        data = await self._reader.receive_exactly(size)
                self._take(code, number, data)
        except TimeoutError:
            self.lost = f"it was silent for {self._lost_seconds:g} seconds"
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self.lost = "the connection broke"
        except (anyio.EndOfStream, anyio.IncompleteRead):
            self.lost = "it closed the connection"
        except WireError as error:
            self.lost = f"it sent nonsense: {error}"

    def _take(self, code: int, number: int, data: bytes) -> None:
        kind = _kind(code & ~_MORE)
        if kind is Kind.PING:
            self.put(Kind.PONG, 0, b"")
        if kind in (Kind.PING, Kind.PONG):
            return
        if kind is Kind.CANCEL:
            if number in self._exchanges:
                self._exchanges[number].scope.cancel()
            return
        whole = self._parts.setdefault(number, bytearray())
        whole += data
        if len(whole) > MAX_MESSAGE_BYTES:
            raise WireError("a message is too large")
        if code & _MORE:
            return
        del self._parts[number]
        message = decode_message(bytes(whole))
        if kind is Kind.OPEN:
            self._begin(number, message)
        elif number in self._exchanges:
            self._exchanges[number].add(kind, message)

    def _begin(self, number: int, message: Message) -> None:
        if self._serve is None or number in self._exchanges:
            raise WireError("an exchange that may not be opened")
        exchange = self._exchanges[number] = Exchange(self, number)
        self._tasks.start_soon(self._answer, self._serve, exchange, number, message)

    async def _answer(
        self, serve: Serve, exchange: Exchange, number: int, message: Message
    ) -> None:
        try:
            with exchange.scope:
                await serve(exchange, message)
        finally:
            self._exchanges.pop(number, None)
            exchange.forget()
            if not exchange.ended:
                self.put(Kind.END, number, encode({"cancelled": True}))


class _Sending:
    """A message on its way, piece by piece."""

    def __init__(self, kind: Kind, number: int, data: bytes) -> None:
        self._kind = kind
        self._number = number
        self._data = memoryview(data)
        self.sent = anyio.Event()
        self.is_done = False

    def piece(self) -> bytes:
        """Return the next frame."""
        data, self._data = self._data[:PIECE_BYTES], self._data[PIECE_BYTES:]
        self.is_done = not self._data
        code = self._kind if self.is_done else self._kind | _MORE
        return _PREFIX.pack(code, self._number, len(data)) + data


def _kind(code: int) -> Kind:
    try:
        return Kind(code)
    except ValueError:
        raise WireError(f"there is no frame {code}") from None
