"""Handles of first processes, by which the host kills cells and learns of their ends.

A handle is a pidfd. Where the kernel has none (gVisor) it is one end of a socket: the
process is killed when the host says so or closes its end, and the other end, which is
here, closes when the process has been collected.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket

from ..kernel import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable


class Handles:
    """Makes handles of this process's children.

    Args:
        poller: Watches the descriptors that `serve` handles.
    """

    def __init__(self, poller: select.poll) -> None:
        self._poller = poller
        # By the number of this end.
        self._ends: dict[int, tuple[socket.socket, int]] = {}

    def open(self, pid: int) -> int:
        """Return a new handle of a child. Raises OSError."""
        try:
            return linux.pidfd_open(pid)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
        ours, theirs = socket.socketpair()
        self._ends[ours.fileno()] = ours, pid
        self._poller.register(ours, select.POLLIN)
        return theirs.detach()

    def serve(self, ready: Iterable[int]) -> None:
        """Kill the children whose handles were used or closed."""
        for fd in ready:
            if fd in self._ends:
                # Until it is collected its number is no other process's.
                os.kill(self._ends[fd][1], signal.SIGKILL)
                self._poller.unregister(fd)

    def collected(self, pid: int) -> None:
        """Let the host know that a child has ended."""
        for fd, (end, child) in [*self._ends.items()]:
            if child == pid:
                del self._ends[fd]
                with contextlib.suppress(KeyError):
                    self._poller.unregister(fd)
                end.close()
