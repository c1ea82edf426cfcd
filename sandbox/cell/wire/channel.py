"""The supervisor's end of the channel: blocking frames, to and from the host."""

from __future__ import annotations

import os
import select

from .frames import MAX_PAYLOAD_BYTES, Frame, FrameDecoder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_READ_BYTES = 65536


class HostGone(Exception):
    """The channel is closed: nobody waits for this cell any more."""


class SupervisorChannel:
    """Blocking frames over two descriptors."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self._write_fd = write_fd
        self._decoder = FrameDecoder(MAX_PAYLOAD_BYTES)
        self._frames: list[Frame] = []
        self._unsent = b""
        # Called while the host does not read, with what leads to it; False when there
        # is no more time to wait.
        self.await_room: Callable[[int], bool] | None = None

    def receive(self) -> Frame:
        """Wait for the next frame. Raises HostGone at the end of the channel."""
        while not self._frames:
            self.read_more()
        return self._frames.pop(0)

    def take(self) -> Frame | None:
        """Return a frame that has already arrived, if there is one."""
        return self._frames.pop(0) if self._frames else None

    def read_more(self) -> None:
        room = self._decoder.room()
        if room is not None:
            count = os.readv(self.read_fd, [room])
            if not count:
                raise HostGone
            self._frames += self._decoder.filled(count)
            return
        data = os.read(self.read_fd, _READ_BYTES)
        if not data:
            raise HostGone
        self._frames += self._decoder.feed(data)

    def has_more(self, seconds: float = 0.0) -> bool:
        """Wait up to `seconds` and tell whether there is something to read."""
        if self._frames:
            return True
        return bool(select.select([self.read_fd], [], [], seconds)[0])

    def send(self, *frames: bytes) -> None:
        """Send frames; what `await_room` does not wait for goes ahead of the next."""
        view = memoryview(b"".join((self._unsent, *frames)))
        if self.await_room is not None:
            view = self._send_in_time(view, self.await_room)
            self._unsent = bytes(view)
            return
        self._unsent = b""
        while view:
            view = view[os.write(self._write_fd, view) :]

    def _send_in_time(
        self, view: memoryview, await_room: Callable[[int], bool]
    ) -> memoryview:
        """Return what is left when time is up."""
        os.set_blocking(self._write_fd, False)
        try:
            while view:
                try:
                    view = view[os.write(self._write_fd, view) :]
                except BlockingIOError:
                    if not await_room(self._write_fd):
                        break
        finally:
            # Whoever reads may do it through the same socket.
            os.set_blocking(self._write_fd, True)
        return view
