"""All that one run of a program writes: two streams, and its result."""

from __future__ import annotations

import json
import os

from ..program import values
from .child import Child, readable
from .output_buffer import OutputBuffer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_RESULT_BYTES = values.MAX_RESULT_BYTES + 256 * 1024
_READ_BYTES = 65536


class ProgramOutput:
    """Reads the pipes of a program during one run.

    Args:
        child: The program's process.
        request: The header of the request, with defaults filled in.
    """

    def __init__(self, child: Child, request: dict[str, Any]) -> None:
        cap, streamed = request["output_bytes"], request["streamed"]
        self.pipes = (child.stdout, child.stderr, child.result)
        self.answered = False
        """True once a program that may live on has written its whole report."""

        self._child = child
        self._live = bool(request["branch"])
        self._buffers = {
            child.stdout: OutputBuffer("stdout", cap, streamed),
            child.stderr: OutputBuffer("stderr", cap, streamed),
        }
        self._result = bytearray()

    @property
    def dropped(self) -> int:
        """Bytes of both streams that were left out so far."""
        return sum(buffer.dropped for buffer in self._buffers.values())

    def flush_due_in(self) -> float:
        """Return the seconds until pending output should be sent."""
        return min(buffer.flush_due_in() for buffer in self._buffers.values())

    def due_frames(self) -> list[bytes]:
        """Remove the output that should be sent now, and return it as frames."""
        return [
            frame
            for buffer in self._buffers.values()
            if buffer.flush_due_in() <= 0
            for frame in buffer.live_frames()
        ]

    def last_frames(self) -> list[bytes]:
        """Return all unsent output as frames."""
        return [
            frame for buffer in self._buffers.values() for frame in buffer.last_frames()
        ]

    def read(self, fd: int) -> bool:
        """Read a pipe once; False at its end."""
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._add(fd, data)
        return True

    def read_rest(self, *, kept: bool) -> None:
        """Read all that is in the pipes, once no process of the run is left.

        Args:
            kept: True if the program's own process lives on.
        """
        for fd in readable(self.pipes) if kept else self.pipes:
            self._drain(fd)

    def _drain(self, fd: int) -> None:
        # Every writer is dead, so this ends after at most one pipe's worth.
        try:
            while True:
                data = os.read(fd, _READ_BYTES)
                if not data:
                    return
                self._add(fd, data)
        except BlockingIOError:
            return

    def _add(self, fd: int, data: bytes) -> None:
        if fd != self._child.result:
            self._buffers[fd].add(data)
            return
        self._result += data[: _MAX_RESULT_BYTES - len(self._result)]
        if self._live and b"\n" in data:
            self.answered = b"\n" in self.split_result()[1]

    def split_result(self) -> tuple[dict[str, Any] | None, bytes]:
        """Split the result pipe into our setup line and the program's report.

        The setup is None if the process ended before it wrote that line.
        """
        if self._child.setup is not None:
            return self._child.setup, bytes(self._result)
        setup, newline, report = bytes(self._result).partition(b"\n")
        try:
            return (json.loads(setup) if newline else None), report
        except ValueError:
            return None, report
