"""The supervisor's end of the channel: blocking frames, to and from the host."""

from __future__ import annotations

import os
import select
from collections import deque

from .frames import MAX_PAYLOAD_BYTES, Frame, FrameDecoder
from .views import drop_sent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_READ_BYTES = 65536


class HostGone(Exception):
    """The host has closed the channel: it no longer needs this cell."""


class SupervisorChannel:
    """The supervisor's end of the channel to the host: blocking frames.

    A host that reads slowly must not hold up the supervisor while a program runs.
    So `await_room` can end the wait; what was not sent by then goes out ahead of the
    next frame, whole and in order.

    Args:
        read_fd: Frames of the host come from here.
        write_fd: Frames to the host go here.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self._write_fd = write_fd
        self._decoder = FrameDecoder(MAX_PAYLOAD_BYTES)
        self._frames: list[Frame] = []
        self._unsent = b""
        # Called with the descriptor while the host does not read; it waits, and returns
        # False when there is no more time to wait.
        self.await_room: Callable[[int], bool] | None = None

    def receive(self) -> Frame:
        """Wait for the next frame. Raises HostGone at the end of the channel."""
        while not self._frames:
            self.read_more()
        return self._frames.pop(0)

    def receive_only(self) -> Frame:
        """Wait for a frame, and read nothing beyond it.

        This process forks before it reads what is for programs. Raises HostGone.
        """
        while not self._frames:
            if self._decoder.room() is not None:
                self.read_more()
                continue
            data = os.read(self.read_fd, self._decoder.lacking)
            if not data:
                raise HostGone
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    def take(self) -> Frame | None:
        """Return a frame that has already arrived, if there is one."""
        return self._frames.pop(0) if self._frames else None

    def read_more(self) -> None:
        """Block until bytes arrive. Raises HostGone at the end of the channel."""
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
        """Send frames, or their parts; what `await_room` gives up on goes out first."""
        if self.await_room is not None:
            view = memoryview(b"".join((self._unsent, *frames)))
            view = self._send_in_time(view, self.await_room)
            self._unsent = bytes(view)
            return
        # Files are large: nothing is copied.
        views = deque(memoryview(each) for each in (self._unsent, *frames) if each)
        self._unsent = b""
        while views:
            drop_sent(views, os.writev(self._write_fd, list(views)))

    def _send_in_time(
        self, view: memoryview, await_room: Callable[[int], bool]
    ) -> memoryview:
        """Send as much as `await_room` allows; return the rest."""
        os.set_blocking(self._write_fd, False)
        try:
            while view:
                try:
                    view = view[os.write(self._write_fd, view) :]
                except BlockingIOError:
                    if not await_room(self._write_fd):
                        break
        finally:
            # The reading side may be the same socket, and reads blockingly.
            os.set_blocking(self._write_fd, True)
        return view
