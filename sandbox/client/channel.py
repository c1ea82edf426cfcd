"""The host's end of a cell's channel: frames over a non-blocking socket."""

from __future__ import annotations

import contextlib
import select
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice

import anyio

from toolcell.core import CellLostError
from toolcell.core.event_loop import unwrapped_single_error

from ..cell.wire.contract import BESIDE
from ..cell.wire.frames import Frame, FrameDecoder, FrameError
from ..cell.wire.views import drop_sent
from ..machine.waited_socket import WaitedSocket

_READ_BYTES = 262_144
_VIEWS_AT_ONCE = 16
_STREAM_HEAD_BYTES = 8
# A supervisor reads at once whatever its programs do.
_UNREAD_SECONDS = 60.0
# A container engine takes no more for a container that has ended, and says so on the
# way out alone.
_LOOK_SECONDS = 0.25
_ENDS = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
_ENDED = "the cell ended before its result was in"
_KILLED = "the cell was ended"
# A cell never has more to say at once than one result or one piece of output.
_MAX_FROM_CELL = 32 * 1024 * 1024


class Channel:
    """Frames to and from one cell. The channel owns its socket.

    Args:
        sock: A connected socket; made non-blocking here.
        multiplexed: True if the bytes that arrive are wrapped in the Docker
            engine's stream headers.
    """

    def __init__(self, sock: socket.socket, *, multiplexed: bool = False) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._waited = WaitedSocket(sock)
        self._decoder = FrameDecoder(_MAX_FROM_CELL)
        self._frames: list[Frame] = []
        self._unsent: deque[memoryview] = deque()
        self._sending = anyio.Lock(fast_acquire=True)
        # True after a send: an immediate read would find nothing yet.
        self._asked = False
        self._streams = StreamSplitter() if multiplexed else None
        self._is_read = False
        self._was_read: anyio.Event | None = None
        self.on_frame_beside: Callable[[Frame], None] | None = None
        """Takes the frames that pass beside runs, whoever reads them."""

    async def send(self, *parts: bytes | memoryview) -> None:
        """Send all of `parts`.

        Raises:
            CellLostError: The channel broke, or its other end has ended. Or that has
                taken nothing for sixty seconds; the channel is closed then.

        Any number of tasks may send. If a task is cancelled in the middle of a frame,
        the next send completes it: a cell never sees half a frame.
        """
        self._asked = True
        alone = not self._unsent
        self._unsent.extend(map(memoryview, parts))
        if alone and self._push():
            return
        async with self._sending:
            if not self._push():
                await self._push_all()

    async def _push_all(self) -> None:
        """Send the rest, and read meanwhile: the cell may first have to say something.

        What it says may be more than the channel holds, and it reads no more until that
        is gone.
        """
        with unwrapped_single_error():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read_on)
                while not self._push():
                    await self._wait_for_reader()
                tasks.cancel_scope.cancel()

    async def _read_on(self) -> None:
        # Whoever sends finds out, too, that the channel has ended.
        with contextlib.suppress(CellLostError):
            while True:
                await self.read_more()

    async def _wait_for_reader(self) -> None:
        with anyio.move_on_after(_UNREAD_SECONDS):
            while not self._has_ended():
                with anyio.move_on_after(_LOOK_SECONDS):
                    await self._wait(anyio.wait_writable)
                    return
            raise CellLostError(_ENDED)
        # The rest of this frame would come before the next one.
        self.close()
        raise CellLostError(
            f"the cell has read nothing for {_UNREAD_SECONDS:g} seconds",
            hint="it was stopped, or the machine is overloaded; use a new one",
        )

    @property
    def is_closed(self) -> bool:
        """True if this end was closed."""
        return self._waited.closed

    def _has_ended(self) -> bool:
        """Return True if the other end sends no more, read or unread."""
        if self.is_closed:
            return True
        poller = select.poll()
        poller.register(self._sock, _ENDS)
        return bool(poller.poll(0))

    def _push(self) -> bool:
        """Send what can be sent now; True if that was all. Raises CellLostError."""
        while self._unsent:
            try:
                sent = self._sock.sendmsg(islice(self._unsent, _VIEWS_AT_ONCE))
            except BlockingIOError:
                return False
            except OSError as error:
                raise self._loss(error) from None
            drop_sent(self._unsent, sent)
        return True

    def _loss(self, error: OSError) -> CellLostError:
        """Return why nothing can be sent or received any more."""
        if self.is_closed:
            return CellLostError(_KILLED)
        if isinstance(error, ConnectionError):
            return CellLostError(_ENDED)
        return CellLostError(f"the cell's channel broke: {error}")

    async def _wait(self, event: Callable[[socket.socket], Awaitable[None]]) -> None:
        try:
            await self._waited.wait(event)
        except anyio.ClosedResourceError:
            raise CellLostError(_KILLED) from None

    async def receive(self) -> Frame:
        """Return the next frame.

        Raises:
            CellLostError: The channel ended, or what came is no frame.
        """
        while not self._frames:
            await self.read_more()
        return self._frames.pop(0)

    async def read_more(self) -> None:
        """Take in what has come, or wait for more; one task reads for all that wait.

        Raises:
            CellLostError: The channel ended, or what came is no frame.
        """
        if self._is_read:
            self._was_read = self._was_read or anyio.Event()
            await self._was_read.wait()
            return
        self._is_read = True
        try:
            await self._read_frames()
        finally:
            self._is_read = False
            if self._was_read is not None:
                self._was_read.set()
                self._was_read = None

    async def _read_frames(self) -> None:
        if self.is_closed:
            raise CellLostError(_KILLED)
        if self._asked:
            self._asked = False
            await self._wait(anyio.wait_readable)
        try:
            frames = self._read()
        except BlockingIOError:
            await self._wait(anyio.wait_readable)
            return
        except FrameError as error:
            raise CellLostError(f"the cell sent a bad frame: {error}") from None
        except OSError as error:
            raise self._loss(error) from None
        if self.on_frame_beside is None:
            self._frames += frames
            return
        for frame in frames:
            if frame.header["type"].startswith(BESIDE):
                self.on_frame_beside(frame)
            else:
                self._frames.append(frame)

    def _read(self) -> list[Frame]:
        """Read the bytes that have arrived; return the frames that are complete."""
        room = self._decoder.room() if self._streams is None else None
        if room is not None:
            count = self._sock.recv_into(room)
            if not count:
                raise CellLostError(_ENDED)
            return self._decoder.filled(count)
        data = self._sock.recv(_READ_BYTES)
        if not data:
            raise CellLostError(_ENDED)
        if self._streams is not None:
            data = self._streams.feed(data)
        return self._decoder.feed(data)

    def quiet(self, *, asked: bool = False) -> bool:
        """Return True if the other end is open and nothing unexpected has arrived.

        Args:
            asked: True if an answer is expected, which may have arrived.
        """
        try:
            arrived = self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return asked or not self._frames
        except OSError:
            return False
        return asked and arrived != b""

    @property
    def diagnostics(self) -> str:
        """The end of the supervisor's standard error; empty where it has none."""
        if self._streams is None:
            return ""
        return self._streams.stderr.decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Close the socket; closing twice is harmless."""
        self._waited.close()


class StreamSplitter:
    """Unwraps the Docker engine's attach stream: 8 bytes of header per piece.

    Source: "Attach to a container" in the Docker Engine API, stream format.
    """

    _MAX_STDERR = 16 * 1024

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self.stderr = b""

    def feed(self, data: bytes) -> bytes:
        """Take raw bytes and return those of standard output.

        Raises:
            FrameError: The bytes are not such a stream.
        """
        output: list[memoryview] = []
        view = memoryview(data)
        while view:
            if not self._left:
                view = self._take_head(view)
                continue
            piece, view = view[: self._left], view[self._left :]
            self._left -= len(piece)
            if self._head[0] == 2:
                self.stderr = (self.stderr + piece)[-self._MAX_STDERR :]
            else:
                output.append(piece)
        return b"".join(output)

    def _take_head(self, view: memoryview) -> memoryview:
        """Take what the header lacks, or the next header; return the rest."""
        begun = self._head if len(self._head) < _STREAM_HEAD_BYTES else b""
        lacks = _STREAM_HEAD_BYTES - len(begun)
        self._head = begun + view[:lacks]
        if len(self._head) == _STREAM_HEAD_BYTES:
            if self._head[0] > 2 or self._head[1:4] != b"\0\0\0":
                raise FrameError("not an attach stream")
            self._left = int.from_bytes(self._head[4:], "big")
            if self._left > _MAX_FROM_CELL:
                raise FrameError(f"attach piece of {self._left} bytes refused")
        return view[lacks:]
