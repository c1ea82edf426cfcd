"""All that one run of a program writes: two streams, and its result."""

from __future__ import annotations

import os
import select
import time

from ..kernel.descriptors import read_from
from ..wire.contract import WINDOW_BYTES
from ..wire.frames import encode
from .child import Child, readable
from .output_buffer import OutputBuffer
from .page_reader import PageReader
from .result_socket import ResultSocket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..wire.output_page import OutputPage

_READ_BYTES = 65536
# A pipe holds at most a mebibyte.
_READS_OF_A_PIPE = 17
# A line is taken out of the page at the second look at it.
_LOOK_SECONDS = 0.04


class ProgramOutput:
    """Reads the pipes of a program, and the page that it prints into, during one run.

    Args:
        child: The program's process.
        request: The header of the request, with defaults filled in.
        page: The page; None if this program has none.
    """

    def __init__(
        self, child: Child, request: dict[str, Any], page: OutputPage | None = None
    ) -> None:
        cap, streamed = request["output_bytes"], request["streamed"]
        self.pipes = (child.stdout, child.stderr, child.result)
        self.streams = {child.stdout, child.stderr}
        """Those of them that have not ended, of the program's two streams."""

        self.answered = False
        """True once a program that may live on has written its whole report."""

        self._child = child
        self._live = bool(request["branch"])
        # Bytes that may be sent in all; only the reader of a stream may stand still.
        self._room = WINDOW_BYTES if streamed else float("inf")
        self._buffers = {
            child.stdout: OutputBuffer("stdout", cap, streamed),
            child.stderr: OutputBuffer("stderr", cap, streamed),
        }
        self._result = ResultSocket(child.setup)
        # Frames that stand before all output that is not in them.
        self._ordered: list[bytes] = []
        self._page = PageReader(page) if page is not None else None
        self._next_look = time.monotonic() + _LOOK_SECONDS
        # Of what came through the pipe of standard output.
        self._end = b""

    @property
    def dropped(self) -> int:
        """Bytes of both streams that were left out so far."""
        return sum(buffer.dropped for buffer in self._buffers.values())

    @property
    def is_full(self) -> bool:
        """True while the reader of a stream has not taken enough of it."""
        return sum(buffer.sent for buffer in self._buffers.values()) >= self._room

    def give_room(self, size: int) -> None:
        """Note that the reader of a stream has taken so many bytes more."""
        self._room += size

    @property
    def outputs_left_out(self) -> int:
        """Outputs past their limits."""
        return self._result.dropped

    def flush_due_in(self) -> float:
        """Return the seconds until pending output should be sent."""
        if self._ordered:
            return 0.0
        due = min(buffer.flush_due_in() for buffer in self._buffers.values())
        if self._page is None:
            return due
        return min(due, self._next_look - time.monotonic())

    def due_frames(self) -> list[bytes]:
        """Remove the output that should be sent now, and return it as frames."""
        self._look()
        return self._take_ordered() + [
            frame
            for buffer in self._buffers.values()
            if buffer.flush_due_in() <= 0
            for frame in buffer.live_frames()
        ]

    @property
    def has_begun(self) -> bool:
        """True unless the program is known not to have begun yet."""
        return self._page is None or self._page.has_begun

    def await_flush(self) -> None:
        """Forget that the program has flushed, before it is asked to."""
        if self._page is not None:
            self._page.await_flush()

    @property
    def is_flushed(self) -> bool:
        """True once the program has flushed because it will be killed."""
        return self._page is not None and self._page.is_flushed

    def _look(self) -> None:
        """Take from the page what has lain there since the last look."""
        if self._page is None or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_SECONDS
        if not self.is_full:
            stdout = self._child.stdout
            self._add(stdout, self._page.take_old(lambda: self._drain(stdout)))

    def _take_ordered(self) -> list[bytes]:
        frames, self._ordered = self._ordered, []
        return frames

    def last_frames(self) -> list[bytes]:
        """Return all unsent output as frames."""
        return self._take_ordered() + [
            frame for buffer in self._buffers.values() for frame in buffer.last_frames()
        ]

    def read(self, fd: int) -> int:
        """Read a pipe once; return the bytes that came, or 0 at its end."""
        try:
            data = self._read(fd)
        except BlockingIOError:
            return _READ_BYTES
        except ConnectionResetError:
            # It ended without reading all answers to its outputs.
            return 0
        if data is None:
            return _READ_BYTES
        if not data:
            self.streams.discard(fd)
            return 0
        self._add(fd, data)
        return len(data)

    def _read(self, fd: int) -> bytes | None:
        """Read a pipe once; None for a result that is not this program's own.

        What an earlier run of a session left behind holds the socket, too.
        """
        owned = self._live and fd == self._child.result
        return read_from(fd, _READ_BYTES, self._child.pid if owned else 0)

    def read_rest(self, *, kept: bool) -> None:
        """Read all that is in the pipes, once no process of the run is left.

        Args:
            kept: True if the program's own process lives on.
        """
        for fd in readable(self.pipes) if kept else self.pipes:
            self._drain(fd)
        if self._page is not None:
            self._add(self._child.stdout, self._page.take_rest(self._end))

    def _drain(self, fd: int) -> None:
        # What a session left in the background may go on to write.
        try:
            for _ in range(_READS_OF_A_PIPE):
                data = self._read(fd)
                if data == b"":
                    return
                self._add(fd, data or b"")
        except (BlockingIOError, ConnectionResetError):
            return

    def _add(self, fd: int, data: bytes) -> None:
        if fd == self._child.stdout:
            self._end = (self._end + data)[-select.PIPE_BUF :]
        if fd != self._child.result:
            self._buffers[fd].add(data)
            return
        for mark, body in self._result.add(data):
            self._take(mark, body)
        if self._live and b"\n" in data:
            self.answered = b"\n" in self.split_result()[1]

    def _take(self, mark: int, body: bytes | None) -> None:
        """Put an output behind what was printed before it, and let the program go on.

        The program waits, so what it has printed is in its pipes.
        """
        if body is not None:
            for fd in (self._child.stdout, self._child.stderr):
                for _ in range(_READS_OF_A_PIPE):
                    try:
                        data = os.read(fd, _READ_BYTES)
                    except BlockingIOError:
                        break
                    if not data:
                        break
                    self._buffers[fd].add(data)
            for buffer in self._buffers.values():
                self._ordered += buffer.live_frames()
            self._ordered.append(encode({"type": "display"}, body))
        try:
            os.write(self._child.result, bytes((mark,)))
        except OSError:
            # It has ended, or does not read the answers that it has.
            pass

    def split_result(self) -> tuple[dict[str, Any] | None, bytes]:
        """Return our line of the result socket, and the program's report.

        The line is None if the process ended before it wrote it.
        """
        return self._result.split()
