"""A program's process, and the supervisor's ends of the pipes to it."""

from __future__ import annotations

import os
import select
import socket

from ..accounting.usage import ProcessMeter
from ..kernel.descriptors import output_pipe
from ..program.main import Pipes
from .write_queue import WriteQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Child:
    """A program's process, and our ends of its pipes.

    One that keeps state serves several runs: `setup` is then the line of its first run,
    and `charge` gives each run its own part of the CPU time.

    Args:
        pid: The process.
        request: A socket that takes requests, not blocking.
        stdout: A pipe, not blocking.
        stderr: A pipe, not blocking.
        result: A socket, not blocking; its first line is ours, written before any
            program ran. (The writer of a pipe could read its line back.)
    """

    __slots__ = (
        "cpu_seconds",
        "folder",
        "lost",
        "meter",
        "pid",
        "request",
        "result",
        "setup",
        "shown",
        "stderr",
        "stdout",
        "write_queue",
    )

    def __init__(
        self, pid: int, request: int, stdout: int, stderr: int, result: int
    ) -> None:
        self.pid = pid
        self.request = request
        self.stdout = stdout
        self.stderr = stderr
        self.result = result
        self.write_queue = WriteQueue(request)
        self.setup: dict[str, Any] | None = None
        self.folder = ""
        self.lost = "its process ended between runs"
        # Its own files in /proc, if rules name them.
        self.shown: list[int] = []
        # Only a process that lives on has one.
        self.meter: ProcessMeter | None = None
        # CPU seconds before this run; None: those in its first line.
        self.cpu_seconds: float | None = None

    def measure(self) -> tuple[float, int]:
        """Return CPU seconds and peak resident bytes of a process that lives on."""
        if self.meter is None:
            self.meter = ProcessMeter(self.pid)
        return self.meter.read()

    def charge(self, cpu_seconds: float, setup: dict[str, Any]) -> float:
        """Return the CPU seconds since the last run, or since the set-up.

        Args:
            cpu_seconds: Those of the process since its start.
            setup: The line that the process wrote before any program ran.
        """
        before = self.cpu_seconds
        if before is None:
            before = setup.get("cpu", 0.0)
        self.cpu_seconds = cpu_seconds
        return cpu_seconds - before

    def close(self) -> None:
        """Close the pipes to the process, and its files."""
        pipes = (self.request, self.stdout, self.stderr, self.result)
        for fd in (*pipes, *self.shown):
            os.close(fd)
        if self.meter is not None:
            self.meter.close()


def readable(fds: tuple[int, ...]) -> list[int]:
    """Return the descriptors that have data or have reached their end."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return [fd for fd, _ in poller.poll(0)]


def drain(fd: int) -> None:
    """Discard the wake-ups in a non-blocking pipe."""
    try:
        os.read(fd, 4096)
    except BlockingIOError:
        pass


def open_pipes(uid: int | None) -> tuple[Child, Pipes]:
    """Return both ends of the pipes to a process that is yet to be forked.

    Args:
        uid: The user of the program; None for that of this process.
    """
    request = _socketpair()
    stdout_r, stdout_w = output_pipe(uid)
    stderr_r, stderr_w = output_pipe(uid)
    result_r, result_w = _socketpair()
    for fd in (request[0], stdout_r, stderr_r, result_r):
        os.set_blocking(fd, False)
    child = Child(0, request[0], stdout_r, stderr_r, result_r)
    return child, Pipes(request[1], stdout_w, stderr_w, result_w)


def _socketpair() -> tuple[int, int]:
    """Return our end, which tells who wrote into the other one, and that."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return ours.detach(), theirs.detach()
