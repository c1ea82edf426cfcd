"""The supervisor's end of the channel: blocking frames, to and from the host."""

from __future__ import annotations

import os
import select

from .frames import MAX_PAYLOAD_BYTES, Frame, FrameDecoder

_READ_BYTES = 65536


class HostGone(Exception):
    """The channel is closed: nobody waits for this cell any more."""


class Channel:
    """Blocking frames over two descriptors."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self._write_fd = write_fd
        self._decoder = FrameDecoder(MAX_PAYLOAD_BYTES)
        self._frames: list[Frame] = []

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
        view = memoryview(b"".join(frames))
        while view:
            view = view[os.write(self._write_fd, view) :]
