"""Connections of the host to servers inside a session's cell."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

from toolcell.core import CellLostError, InvalidInputError

from ..cell.wire.frames import Frame
from ..client.file_errors import known
from ..network.stream import CellStream
from .side_channel import SideChannel

_CONNECT_SECONDS = 10.0
_HIGHEST_PORT = 65_535


class PortStream(ByteStream):
    """A connection to a server inside a cell.

    It is a stream of anyio, with the errors of one: `EndOfStream` when the server has
    ended its direction, `BrokenResourceError` when it closed the connection or the
    cell is gone, `ClosedResourceError` after `aclose`. Neither side is more than
    524,288 bytes ahead of the other.

    Args:
        stream: The bytes and their credit.
        table: The connections of its cell.
    """

    def __init__(self, stream: CellStream, table: PortTable) -> None:
        self._stream = stream
        self._table = table
        self._rest = b""
        self._is_closed = False
        self._has_ended = False
        self._receiving = anyio.ResourceGuard("reading from")
        self._sending = anyio.ResourceGuard("writing to")

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        """Return the next bytes, at least one and at most `max_bytes`.

        Raises:
            anyio.EndOfStream: The server has ended its direction.
            anyio.BrokenResourceError: The server or the cell is gone.
            anyio.ClosedResourceError: It was closed here.
        """
        await anyio.lowlevel.checkpoint()
        with self._receiving, self._failures():
            data = self._rest or await self._stream.receive()
        if not data:
            raise anyio.EndOfStream
        self._rest = data[max_bytes:]
        return data[:max_bytes]

    async def send(self, item: bytes) -> None:
        """Send bytes; wait while the server does not read.

        Raises:
            anyio.BrokenResourceError: The server or the cell is gone.
            anyio.ClosedResourceError: It, or this direction, was closed here.
        """
        await anyio.lowlevel.checkpoint()
        with self._sending, self._failures():
            if self._has_ended:
                raise anyio.ClosedResourceError
            await self._stream.send(bytes(item))

    async def send_eof(self) -> None:
        """End the direction to the server; it can still send."""
        with self._sending, self._failures():
            if not self._has_ended:
                self._has_ended = True
                await self._stream.end()

    async def aclose(self) -> None:
        """End both directions; the server still gets what was sent."""
        if not self._is_closed:
            self._is_closed = True
            with anyio.CancelScope(shield=True):
                await self._table.close(self._stream)
        await anyio.lowlevel.checkpoint()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn our errors into those of streams."""
        if self._is_closed:
            raise anyio.ClosedResourceError
        try:
            yield
        except (ConnectionResetError, CellLostError) as error:
            if self._is_closed:
                raise anyio.ClosedResourceError from None
            raise anyio.BrokenResourceError(str(error)) from error


@dataclass(slots=True)
class _Opening:
    """A connection that the cell has not answered for yet."""

    port: int
    answered: anyio.Event = field(default_factory=anyio.Event)
    failure: InvalidInputError | CellLostError | None = None

    def answer(self, failure: InvalidInputError | CellLostError | None = None) -> None:
        self.failure = failure
        self.answered.set()


class PortTable:
    """The connections into one cell.

    Args:
        frames: Leads to the cell.
    """

    def __init__(self, frames: SideChannel) -> None:
        self._frames = frames
        self._made = 0
        self._streams: dict[int, CellStream] = {}
        self._openings: dict[int, _Opening] = {}
        frames.add("port", self)

    @property
    def is_busy(self) -> bool:
        """True while a connection is open."""
        return bool(self._streams)

    async def connect(self, port: int) -> PortStream:
        """Return a connection to a port of the cell's loopback interface.

        Raises:
            InvalidInputError: It is no port, nothing listens there, or too many
                connections are open.
            CellLostError: The cell is gone.
        """
        if type(port) is not int or not 1 <= port <= _HIGHEST_PORT:
            raise InvalidInputError(
                f"there is no port {port!r}", hint=f"ports are 1 to {_HIGHEST_PORT}"
            )
        self._made += 1
        number = self._made
        stream = self._streams[number] = CellStream(number, self._frames.send, "port")
        self._frames.follow()
        try:
            await self._open(number, port)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.close(stream)
            raise
        finally:
            self._openings.pop(number, None)
        return PortStream(stream, self)

    async def _open(self, number: int, port: int) -> None:
        opening = self._openings[number] = _Opening(port)
        await self._frames.send({"type": "port_open", "id": number, "port": port})
        with anyio.move_on_after(_CONNECT_SECONDS):
            await opening.answered.wait()
        if not opening.answered.is_set():
            raise _refused(port, "it accepts no connection", "busy")
        if opening.failure is not None:
            raise opening.failure

    async def close(self, stream: CellStream) -> None:
        """End a connection, if it is open. Never raises."""
        if self._streams.pop(stream.number, None) is None:
            return
        stream.break_off("the connection was closed")
        with contextlib.suppress(CellLostError), anyio.move_on_after(1):
            header = {"type": "port_close", "id": stream.number}
            await self._frames.send(header)

    def handle_frame(self, frame: Frame) -> None:
        """Take a frame of the cell; frames of closed connections are ignored.

        Raises:
            FrameError, KeyError, TypeError, ValueError: No cell of ours sends it.
        """
        header = frame.header
        kind, number = header["type"], header["id"]
        stream = self._streams.get(number)
        if stream is None:
            return
        if kind not in ("port_opened", "port_failed"):
            stream.take(kind, header, frame.payload)
            if kind == "port_close":
                del self._streams[number]
            return
        opening = self._openings[number]
        if kind == "port_opened":
            opening.answer()
            return
        del self._streams[number]
        why, reason = str(header["why"])[:200], known(header["reason"])
        opening.answer(_refused(opening.port, why, reason))

    def end_all(self, why: str) -> None:
        """Break all connections: what makes them is gone."""
        for stream in self._streams.values():
            stream.break_off(why)
        for opening in self._openings.values():
            opening.answer(CellLostError(why, hint="open a new session"))
        self._streams.clear()


def _refused(port: int, why: str, reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"port {port} of the cell: {why}",
        hint="start a server that listens there, at 127.0.0.1 or at all addresses",
        details={"reason": reason},
    )
