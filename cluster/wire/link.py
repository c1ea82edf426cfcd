"""One connection between a driver and a node, with many exchanges at once.

Theory of operation. A frame is its kind, the number of its exchange, a length, and at
most 64 KiB of a message. The driver opens exchanges; both ends send messages in them,
and the node ends each by a last message or an error. Pieces of all exchanges leave in
turn, so a large file delays no other exchange. An end that receives nothing for
`lost_seconds` gives the link up; each asks for a sign of life four times as often.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from typing import Any, Self

import anyio
import anyio.abc
from anyio.lowlevel import checkpoint

from toolcell.core import CellLostError

from .message import MAX_MESSAGE_BYTES, WireError, WireMessage, decode_message
from .message import encode_message as encode
from .outbox import MORE, PIECE_BYTES, PREFIX, Outbox
from .tls import TLSSocket

MAX_EXCHANGES = 65_536
"""Exchanges of a link at once. When it is exceeded the node ends the link."""

MAX_UNREAD_BYTES = 64 * 1024 * 1024
"""Bytes of messages of one exchange that nobody has read, beside a single large one.
When it is exceeded the link ends: whoever sends waits for answers long before."""

_END_SECONDS = 15.0
_ASKS = 4


class Kind(IntEnum):
    """The kinds of frames."""

    PING = 0
    OPEN = 1
    DATA = 2
    END = 3
    ERROR = 4
    CANCEL = 5
    PONG = 6


_KINDS = {int(kind): kind for kind in Kind}


class Exchange:
    """The messages of one request, at either end of a link.

    The driver leaves it as a context; leaving it early cancels it, and waits for its
    end.
    """

    __slots__ = (
        "_heard",
        "_inbox",
        "_link",
        "_parts",
        "_unread",
        "ended",
        "is_open",
        "number",
        "scope",
    )

    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self._inbox: deque[tuple[Kind, WireMessage]] = deque()
        self._heard: anyio.Event | None = None
        self.number = number
        """Its number on the link."""

        self.ended = False
        """True if the last message was read, or sent."""

        self.is_open = False
        """At the node: True once the request is whole."""

        self._parts: bytearray | None = None
        self._unread = 0
        self.scope: anyio.CancelScope | None = None
        """At the node: cancels the answer."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if not self.ended:
                with anyio.CancelScope(shield=True):
                    await self._cancel()
        finally:
            self._link.forget(self)

    async def _cancel(self) -> None:
        self._link.put(Kind.CANCEL, self.number, b"")
        with anyio.move_on_after(_END_SECONDS):
            while not self.ended:
                try:
                    await self.receive()
                except CellLostError:
                    return

    async def send(self, fields: dict[str, Any], *blobs: bytes) -> None:
        """Send a message; return when it is on its way.

        Raises:
            CellLostError: The link is gone.
            InvalidInputError: It cannot be sent.
        """
        await self._link.deliver(Kind.DATA, self.number, encode(fields, blobs))

    def send_soon(self, fields: dict[str, Any], *blobs: bytes) -> None:
        """Put a message in line and do not wait. Raises InvalidInputError."""
        self._link.put(Kind.DATA, self.number, encode(fields, blobs))

    def finish(self, kind: Kind, fields: dict[str, Any], *blobs: bytes) -> None:
        """Send the last message, at the node. Raises InvalidInputError."""
        data = encode(fields, blobs)
        self.ended = True
        self._link.put(kind, self.number, data)

    async def receive(self) -> tuple[Kind, WireMessage]:
        """Return the next message. Raises CellLostError if the link is gone."""
        while not self._inbox:
            if self._link.lost:
                # Whoever tries again at once must not keep the link from ending.
                await checkpoint()
                raise self._link.lost_error()
            self._heard = anyio.Event()
            await self._heard.wait()
        kind, message = self._inbox.popleft()
        self._unread -= message.size
        if kind is Kind.END or kind is Kind.ERROR:
            self.ended = True
        return kind, message

    def lost_error(self) -> CellLostError:
        """Return the error of whoever waits for the other end."""
        return self._link.lost_error()

    def protocol_error(self, error: Exception) -> CellLostError:
        """Give the link up, since the other end breaks the protocol; return why."""
        return self._link.protocol_error(error)

    def joined(self, data: bytes, *, more: bool) -> bytes | None:
        """Return a message of which this was the last piece; None: more is to come.

        Raises:
            WireError: It is too large.
        """
        if self._parts is None:
            if not more:
                return data
            self._parts = bytearray()
        self._parts += data
        if len(self._parts) > MAX_MESSAGE_BYTES:
            raise WireError("a message is too large")
        if more:
            return None
        whole, self._parts = bytes(self._parts), None
        return whole

    def add(self, kind: Kind, message: WireMessage) -> None:
        """Take a message from the link.

        Raises:
            WireError: Nobody has asked for so much.
        """
        self._inbox.append((kind, message))
        self._unread += message.size
        if len(self._inbox) > 1 and self._unread > MAX_UNREAD_BYTES:
            raise WireError("it sends more than is read")
        self.wake()

    def wake(self) -> None:
        """Let whoever receives look again."""
        if self._heard is not None:
            self._heard.set()


Serve = Callable[[Exchange, WireMessage], Awaitable[None]]


class Link:
    """Carries exchanges over an authenticated connection.

    Either end has one, and `run` is its life: it sends, reads and watches until the
    other end closes, is silent or breaks the protocol. What goes wrong in an exchange
    ends that exchange; what breaks the protocol ends the link, and every exchange then
    raises the one `CellLostError` with the reason in `lost`. A driver opens exchanges
    and leaves them; a node answers each in a task, which a cancellation ends.

    Args:
        connection: The connection, which is closed at the end.
        name: The other end, for errors.
        lost_seconds: Seconds without a sign of life until the link is given up.
        serve: Answers one exchange of a driver; None: this is the driver.
    """

    def __init__(
        self,
        connection: TLSSocket,
        *,
        name: str,
        lost_seconds: float,
        serve: Serve | None = None,
    ) -> None:
        self._connection = connection
        self._name = name
        self._lost_seconds = lost_seconds
        self._serve = serve
        self._exchanges: dict[int, Exchange] = {}
        self._outbox = Outbox(connection, lost_seconds, self.give_up)
        self._tasks: anyio.abc.TaskGroup | None = None
        self._made = 0
        self._heard = False
        self.lost = ""
        """The reason why the link is gone; empty while it is there."""

    async def run(self) -> None:
        """Carry messages until the link is gone; end all exchanges then."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._outbox.run)
                tasks.start_soon(self._watch)
                await self._read(tasks)
                tasks.cancel_scope.cancel()
        finally:
            self.lost = self.lost or "the link was closed"
            for exchange in self._exchanges.values():
                exchange.wake()
            self._outbox.close()
            self._connection.close()

    def lost_error(self) -> CellLostError:
        """Return the error of whoever waits for the other end."""
        return CellLostError(
            f"the node {self._name} is lost: {self.lost or 'the link was closed'}",
            hint="run it again; whether it had an effect is unknown",
            details={"reason": "node_lost", "node": self._name},
        )

    def protocol_error(self, error: Exception) -> CellLostError:
        """Give the link up, since the other end breaks the protocol; return why."""
        self.give_up(f"it broke the protocol: {error}")
        return self.lost_error()

    def give_up(self, why: str) -> None:
        """End the link, and all exchanges with it."""
        self.lost = self.lost or why
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    def exchange(self, fields: dict[str, Any], blobs: Sequence[bytes] = ()) -> Exchange:
        """Open an exchange, which has to be left; on a link that is gone it raises.

        Raises:
            InvalidInputError: It cannot be sent.
        """
        data = encode(fields, blobs)
        self._made += 1
        exchange = self._exchanges[self._made] = Exchange(self, self._made)
        self.put(Kind.OPEN, exchange.number, data)
        return exchange

    def forget(self, exchange: Exchange) -> None:
        """Drop what comes for an exchange from now on."""
        self._exchanges.pop(exchange.number, None)

    async def deliver(self, kind: Kind, number: int, data: bytes) -> None:
        """Send a message; return when it is on its way. Raises CellLostError."""
        if not self.lost:
            await self._outbox.deliver(kind, number, data)
        if self.lost:
            await checkpoint()
            raise self.lost_error()

    def put(self, kind: Kind, number: int, data: bytes) -> None:
        """Put a message in line, and do not wait."""
        if not self.lost:
            self._outbox.put(kind, number, data)

    async def _watch(self) -> None:
        """Ask for signs of life; give up when several in a row are not answered.

        Answers are waited for, not the clock: while this process stands still, it
        receives nothing.
        """
        unanswered = 0
        while unanswered < _ASKS:
            self._heard = False
            self.put(Kind.PING, 0, b"")
            await anyio.sleep(self._lost_seconds / _ASKS)
            unanswered = 0 if self._heard else unanswered + 1
        self.give_up(f"it was silent for {self._lost_seconds:g} seconds")

    async def _read(self, tasks: anyio.abc.TaskGroup) -> None:
        left = b""
        try:
            while data := await self._connection.receive():
                self._heard = True
                left = self._take_all(tasks, left + data if left else data)
            self.lost = self.lost or "it closed the connection"
        except OSError:
            self.lost = self.lost or "the connection broke"
        except WireError as error:
            self.lost = self.lost or f"it broke the protocol: {error}"

    def _take_all(self, tasks: anyio.abc.TaskGroup, data: bytes) -> bytes:
        """Take each whole frame; return what is left."""
        start, whole = 0, len(data)
        while whole - start >= PREFIX.size:
            code, number, size = PREFIX.unpack_from(data, start)
            if size > PIECE_BYTES:
                raise WireError(f"a piece of {size} bytes")
            begin = start + PREFIX.size
            if whole - begin < size:
                break
            start = begin + size
            self._take(tasks, code, number, data[begin:start])
        return data[start:]

    def _take(
        self, tasks: anyio.abc.TaskGroup, code: int, number: int, data: bytes
    ) -> None:
        kind = _KINDS.get(code & ~MORE)
        if kind is None:
            raise WireError(f"there is no frame {code}")
        if kind is Kind.PING and not self._outbox.waits:
            # What waits to leave is a sign of life as well.
            self.put(Kind.PONG, 0, b"")
        if kind is Kind.PING or kind is Kind.PONG:
            return
        exchange = self._exchanges.get(number)
        if kind is Kind.OPEN:
            exchange = self._opening(number, exchange)
        if exchange is None:
            # Nobody waits for it any more.
            return
        if kind is Kind.CANCEL:
            if exchange.scope is not None:
                exchange.scope.cancel()
            return
        whole = exchange.joined(data, more=bool(code & MORE))
        if whole is None:
            return
        message = decode_message(whole)
        if kind is Kind.OPEN:
            exchange.is_open = True
            tasks.start_soon(self._answer, exchange, message)
        else:
            exchange.add(kind, message)

    def _opening(self, number: int, exchange: Exchange | None) -> Exchange:
        """Return the exchange that a driver opens, with one message or its pieces."""
        if self._serve is None or (exchange is not None and exchange.is_open):
            raise WireError("an exchange that may not be opened")
        if exchange is None:
            if len(self._exchanges) == MAX_EXCHANGES:
                raise WireError("too many exchanges")
            exchange = self._exchanges[number] = Exchange(self, number)
            exchange.scope = anyio.CancelScope()
        return exchange

    async def _answer(self, exchange: Exchange, message: WireMessage) -> None:
        assert self._serve is not None
        assert exchange.scope is not None
        try:
            with exchange.scope:
                await self._serve(exchange, message)
        finally:
            self.forget(exchange)
            if not exchange.ended:
                exchange.finish(Kind.END, {"cancelled": True})
