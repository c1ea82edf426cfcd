"""One command: its descriptors, its credit, how it ended."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import termios
import time

from ..kernel.process_tree import stat_of
from ..wire.contract import PIECE_BYTES, WINDOW_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from typing import Any

_END_OF_INPUT = b"\x04"


class Process:
    """A command that runs, or has ended and still has output to pass on.

    Args:
        number: The host's number for it.
        pid: Its process, which leads its own session.
        stdin: The descriptor of its input; None if it has none.
        outputs: Descriptors to read, and the stream of each.
        is_terminal: True if stdin and output are one pseudo-terminal.
        timeout: Seconds that it may take; None: until the session ends.
    """

    def __init__(
        self,
        number: int,
        pid: int,
        stdin: int | None,
        outputs: dict[int, str],
        is_terminal: bool,
        timeout: float | None,
    ) -> None:
        self.number = number
        self.pid = pid
        self.stdin = stdin
        self.closed_stdin: int | None = None
        self.outputs = outputs
        self.is_terminal = is_terminal
        self.watched: dict[int, int] = {}
        # Its own files in /proc, if rules name them.
        self.shown: list[int] = []
        self.unsent = bytearray()
        # Bytes of input for which the host was not given room yet.
        self.taken = 0
        self.input_ended = False
        self.credit = WINDOW_BYTES
        self.status: int | None = None
        self.reason: str | None = None
        self.is_killed = False
        # Kills for memory in the cell: before it began, from then to its end, and all.
        self.oom_before = self.oom_kills = self.oom_total = 0
        self._usage: resource.struct_rusage | None = None
        self._started = self._ended = time.monotonic()
        self.deadline = None if timeout is None else self._started + timeout

    @property
    def input_events(self) -> int:
        """The events of its stdin to wait for."""
        return select.EPOLLOUT if self.unsent else 0

    def write_input(self) -> int:
        """Write input that waits; return how many bytes were taken or given up."""
        if self.stdin is None:
            given_up = len(self.unsent)
            self.unsent.clear()
            return given_up
        taken = 0
        try:
            while self.unsent:
                count = os.write(self.stdin, self.unsent[:PIECE_BYTES])
                del self.unsent[:count]
                taken += count
        except BlockingIOError:
            return taken
        except OSError:
            # Nobody reads it any more.
            taken += len(self.unsent)
            self.unsent.clear()
            self.input_ended = True
        if self.input_ended:
            self._end_input()
        return taken

    def _end_input(self) -> None:
        if self.stdin is None:
            return
        if self.is_terminal:
            self.input_ended = False
            self.unsent += _END_OF_INPUT
        else:
            self.closed_stdin, self.stdin = self.stdin, None

    def read_output(self, fd: int) -> bytes | None:
        """Return what a pipe holds, within the credit; None if that is nothing.

        No bytes are its end.
        """
        if self.credit <= 0:
            return None
        try:
            data = os.read(fd, min(self.credit, PIECE_BYTES))
        except BlockingIOError:
            return None
        except OSError:
            # A terminal that nobody has open any more.
            return b""
        self.credit -= len(data)
        return data

    def holds_output(self) -> bool:
        """Tell whether there is output that was not read."""
        poller = select.poll()
        for fd in self.outputs:
            poller.register(fd, select.POLLIN)
        return any(events & select.POLLIN for _, events in poller.poll(0))

    def resize(self, rows: int, cols: int) -> None:
        """Give its terminal another size, in characters."""
        for fd in self.outputs if self.is_terminal else ():
            fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.status is None:
            self.is_killed |= number == signal.SIGKILL
            os.kill(self.pid, number)

    def kill(self, reason: str) -> None:
        """Kill it, and all processes of its session.

        Args:
            reason: Why; it is reported if the command has not ended by itself.
        """
        if self.status is None:
            self.reason = self.reason or reason
        for pid in _members_of(self.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def end(self, status: int, usage: resource.struct_rusage) -> None:
        """Note that it has ended, as wait4 said."""
        self.status, self._usage, self._ended = status, usage, time.monotonic()

    @property
    def peak_bytes(self) -> int:
        """The most that it had in memory, once it has ended."""
        return self._usage.ru_maxrss * 1024 if self._usage is not None else 0

    def close(self) -> None:
        """Close its input, and its files."""
        for fd in (self.stdin, self.closed_stdin, *self.shown):
            if fd is not None:
                os.close(fd)

    def report(self) -> dict[str, Any]:
        """Return the frame that says how it ended."""
        usage = self._usage
        assert usage is not None
        return {
            "type": "exec_ended",
            "id": self.number,
            "wait_status": self.status,
            "reason": self.reason,
            "wall_ms": (self._ended - self._started) * 1000,
            "cpu_ms": (usage.ru_utime + usage.ru_stime) * 1000,
            "peak_memory_bytes": self.peak_bytes,
            "oom_kills": self.oom_kills,
            "oom_total": self.oom_total,
        }


def _members_of(session: int) -> list[int]:
    """Return the processes of a session. From proc(5): it is the sixth field."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in pids if stat_of(pid)[3:4] == [b"%d" % session]]
