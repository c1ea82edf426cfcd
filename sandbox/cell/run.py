"""One run, as the supervisor sees it: hand-over, limits, output, verdict."""

from __future__ import annotations

import json
import os
import select
import time

from . import runner
from .frames import encode
from .sink import Sink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .accounts import Accounts
    from .frames import Frame
    from .host_channel import Channel


_MAX_RESULT_BYTES = runner.MAX_RESULT_BYTES + 256 * 1024
_READ_BYTES = 65536
# Most programs are over before it pays to listen to each of their writes.
_DEAF_SECONDS = 0.002
# The wait status of a child that was already gone when its run began.
_VANISHED = 70 << 8


class Child:
    """A prepared process and our ends of its pipes."""

    __slots__ = ("pid", "request", "result", "stderr", "stdout")

    def __init__(
        self, pid: int, request: int, stdout: int, stderr: int, result: int
    ) -> None:
        self.pid = pid
        self.request = request
        self.stdout = stdout
        self.stderr = stderr
        self.result = result


def drain(fd: int) -> None:
    """Forget the wake-ups that a non-blocking pipe holds."""
    try:
        os.read(fd, 4096)
    except BlockingIOError:
        pass


class Run:
    """One program: from the hand-over to the last byte of its output."""

    def __init__(
        self,
        channel: Channel,
        child: Child,
        request: dict[str, Any],
        accounts: Accounts,
        wake_fd: int,
    ) -> None:
        self._channel = channel
        self._child = child
        self._request = request
        self._accounts = accounts
        self._wake_fd = wake_fd
        cap = request["output_bytes"]
        self._sinks = {
            child.stdout: Sink("stdout", cap),
            child.stderr: Sink("stderr", cap),
        }
        self._result = bytearray()
        self._reason: str | None = None
        self._status: int | None = None
        self._cpu_seconds = 0.0
        self._peak_bytes = 0
        self._started = time.monotonic()
        self._ended = self._started

    def hand_over(self, frame: Frame) -> None:
        """Give the child its program; a child that is already dead is noticed later."""
        alone = None if os.getpid() == 1 else self._child.pid
        self._accounts.begin(alone, bool(frame.header["watch_memory_bytes"]))
        size = frame.header["code_bytes"]
        code, inputs = frame.payload[:size], frame.payload[size:]
        header = json.dumps(frame.header).encode()
        text = b"\n".join((header, inputs or b"{}", code))
        view = memoryview(text)
        try:
            while view:
                view = view[os.write(self._child.request, view) :]
        except BrokenPipeError:
            pass
        os.close(self._child.request)
        self._started = time.monotonic()

    def watch(self) -> None:
        """Read, send and keep the limits until the program ends or must end."""
        poller = select.poll()
        pipes = {self._child.stdout, self._child.stderr, self._child.result}
        poller.register(self._wake_fd, select.POLLIN)
        poller.register(self._channel.read_fd, select.POLLIN)
        deadline = self._started + self._request["wall_seconds"]
        poller.poll(_DEAF_SECONDS * 1000)
        drain(self._wake_fd)
        self.reap()
        for fd in pipes:
            poller.register(fd, select.POLLIN)
        while self._status is None and self._reason is None:
            for fd, _ in poller.poll(self._patience(deadline) * 1000):
                if fd in pipes:
                    if not self._read(fd):
                        poller.unregister(fd)
                elif fd == self._wake_fd:
                    drain(self._wake_fd)
                    self.reap()
                else:
                    self._channel.read_more()
                    self._obey(self._channel.take())
            self._keep_limits(deadline)
        self._ended = time.monotonic()

    def _patience(self, deadline: float) -> float:
        patience = deadline - time.monotonic()
        if self._accounts.must_watch(self._request):
            patience = min(patience, self._accounts.INTERVAL_SECONDS)
        for sink in self._sinks.values():
            patience = min(patience, sink.patience())
        return max(patience, 0.0)

    def _keep_limits(self, deadline: float) -> None:
        if self._status is not None or self._reason is not None:
            return
        for sink in self._sinks.values():
            if sink.patience() <= 0:
                self._channel.send(*sink.live_frames())
            if sink.dropped and self._request["stop_at_output_limit"]:
                self._reason = "output_limit"
        if time.monotonic() >= deadline:
            self._reason = "timeout"
        elif self._accounts.must_watch(self._request):
            self._reason = self._reason or self._accounts.exceeded(self._request)

    def _obey(self, frame: Frame | None) -> None:
        if frame is not None and frame.header["type"] == "stop":
            self._reason = "cancelled"

    def _read(self, fd: int) -> bool:
        """Take what a pipe holds; False at its end."""
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        if fd == self._child.result:
            room = _MAX_RESULT_BYTES - len(self._result)
            self._result += data[:room]
        else:
            self._sinks[fd].add(data)
        return True

    @property
    def ended(self) -> bool:
        """Whether the program's own process has been collected."""
        return self._status is not None

    def reap(self) -> bool:
        """Collect ended processes: status and usage. True if no process is left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                if self._status is None:
                    self._status = _VANISHED
                return True
            if pid == 0:
                return False
            self._cpu_seconds += usage.ru_utime + usage.ru_stime
            self._peak_bytes = max(self._peak_bytes, usage.ru_maxrss * 1024)
            if pid == self._child.pid:
                self._status = status

    def only_keeper_left(self) -> bool:
        """Tell whether what still ends is a sleeper that only holds memory."""
        if not self.ended:
            return False
        self._drain(self._child.result)
        keeper = self._said()[0].get("keeper")
        return self._accounts.children() == [keeper]

    def _said(self) -> tuple[dict[str, Any], bytes]:
        """Split what came over the result pipe: our own word, and the program's."""
        setup, _, report = bytes(self._result).partition(b"\n")
        try:
            return json.loads(setup), report
        except ValueError:
            why = "the program's process died before it was confined"
            return {"error": why}, report

    def finish(self) -> None:
        """Send what is left of the output, and the verdict."""
        for fd in (self._child.stdout, self._child.stderr, self._child.result):
            self._drain(fd)
            os.close(fd)
        first, report = self._said()
        header = {
            "type": "finished",
            "reason": self._reason,
            "wait_status": self._status,
            "wall_ms": (self._ended - self._started) * 1000,
            "cpu_ms": max(self._cpu_seconds - first.get("cpu", 0.0), 0.0) * 1000,
            "peak_memory_bytes": self._peak_bytes,
            "oom_kills": self._accounts.oom_kills(),
            "layers": first.get("layers", []),
            "setup_error": first.get("error"),
        }
        frames = [
            frame for sink in self._sinks.values() for frame in sink.last_frames()
        ]
        self._channel.send(*frames, encode(header, report))

    def _drain(self, fd: int) -> None:
        # Every writer is dead, so this ends after at most one pipe's worth.
        try:
            while True:
                data = os.read(fd, _READ_BYTES)
                if not data:
                    return
                if fd == self._child.result:
                    room = _MAX_RESULT_BYTES - len(self._result)
                    self._result += data[:room]
                else:
                    self._sinks[fd].add(data)
        except BlockingIOError:
            return
