"""The supervisor: first process of a cell, the only one that the host trusts.

Theory of operation. The supervisor is PID 1 of the cell. It speaks frames with
the host on its channel and keeps one child ready: a fork of its own warm
interpreter, already confined, that waits for a program. A run hands the program
to that child, reads its output and result pipes, keeps the deadline and the
caps, and reports what wait4 says. When the program ends, or must, every process
but PID 1 is killed and reaped before the result leaves, so nothing survives a
run. The child cannot reach the channel (its descriptors are closed before it
runs anything), cannot signal PID 1 (another uid, or the kernel's protection of
a namespace's first process) and cannot trace it (not dumpable).

In the `process` isolation of last resort there is no PID namespace: there the
supervisor kills the child's process group instead.
"""

from __future__ import annotations

import gc
import json
import math
import os
import select
import signal
import sys
import time

from . import runner
from .accounts import Accounts
from .frames import (
    MAX_PAYLOAD_BYTES,
    PROTOCOL_VERSION,
    Frame,
    FrameDecoder,
    FrameError,
    encode,
)
from .sink import Sink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


_MAX_RESULT_BYTES = runner.MAX_RESULT_BYTES + 256 * 1024
_READ_BYTES = 65536
_KILL_AGAIN_SECONDS = 0.01
# A cell that is not used at once has time to rehearse.
_IDLE_SECONDS = 0.01
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


def main(read_fd: int, write_fd: int, cgroup: dict[str, int] | None = None) -> None:
    """Serve one cell until the host closes the channel. Never returns."""
    channel = Channel(read_fd, write_fd)
    try:
        Supervisor(channel, cgroup).serve()
    except (HostGone, BrokenPipeError, ConnectionResetError):
        pass
    except FrameError as error:
        print(f"toolcell supervisor: {error}", file=sys.stderr)
    finally:
        _end()


def _narrow_affinity(cpus: float) -> None:
    """Without a cgroup: stay on as few CPUs as hold `cpus`; 0 leaves all."""
    available = sorted(os.sched_getaffinity(0))
    wanted = math.ceil(cpus)
    if 0 < wanted < len(available):
        first = int.from_bytes(os.urandom(2), "big")
        chosen = [available[(first + i) % len(available)] for i in range(wanted)]
        os.sched_setaffinity(0, chosen)


def _end() -> NoReturn:
    if os.getpid() == 1:
        os.kill(-1, signal.SIGKILL)
    os._exit(0)


class Supervisor:
    def __init__(self, channel: Channel, cgroup: dict[str, int] | None) -> None:
        self._channel = channel
        self._owns_namespace = os.getpid() == 1
        self._child: Child | None = None
        self._wake_r, self._wake_w = os.pipe()
        self._settings: dict[str, Any] = {}
        self._held: list[str] = []
        self._accounts = Accounts(cgroup)

    def serve(self) -> None:
        self._protect()
        hello = self._channel.receive().header
        if hello.get("protocol") != PROTOCOL_VERSION:
            self._channel.send(encode({"type": "ready", "protocol": PROTOCOL_VERSION}))
            raise FrameError(f"host speaks protocol {hello.get('protocol')}")
        self._settings = {**hello["settings"], "held": self._held}
        _narrow_affinity(self._settings["affinity"])
        gc.collect()
        gc.freeze()
        self._prepare(rehearse=False)
        ready = {
            "type": "ready",
            "protocol": PROTOCOL_VERSION,
            "python": sys.version.split()[0],
        }
        self._channel.send(encode(ready))
        if not self._channel.has_more(_IDLE_SECONDS):
            self._rehearse()
            self._prepare(rehearse=True)
        while True:
            frame = self._channel.receive()
            if frame.header["type"] == "run":
                self._run(frame)
                if frame.header["final"]:
                    return
                self._prepare(rehearse=not self._channel.has_more())

    def _protect(self) -> None:
        """Keep everything else in the cell away from this process."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for fd in (self._wake_r, self._wake_w):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        try:
            from . import linux

            linux.prctl(linux.PR_SET_DUMPABLE, 0)
            # What this process no longer can give, no child can get.
            linux.drop_bounding_set()
            self._held.append("no_bounding_set")
        except (ImportError, OSError):
            # Without ctypes the other uid of the child is the wall.
            pass

    def _prepare(self, rehearse: bool) -> None:
        """Fork the process of the next run."""
        request_r, request_w = os.pipe()
        stdout_r, stdout_w = os.pipe()
        stderr_r, stderr_w = os.pipe()
        result_r, result_w = os.pipe()
        pid = os.fork()
        if pid == 0:
            pipes = runner.Pipes(request_r, stdout_w, stderr_w, result_w)
            runner.start(pipes, self._settings, rehearse)
        for fd in (request_r, stdout_w, stderr_w, result_w):
            os.close(fd)
        for fd in (stdout_r, stderr_r, result_r):
            os.set_blocking(fd, False)
        self._child = Child(pid, request_w, stdout_r, stderr_r, result_r)

    def _rehearse(self) -> None:
        """Run a small program for nobody, to make the memory it touches ours."""
        header = {
            "type": "run",
            "language": "python",
            "code_bytes": 8,
            "wall_seconds": 1.0,
            "cpu_seconds": None,
            "output_bytes": 2,
            "stop_at_output_limit": False,
            "watch_memory_bytes": 0,
        }
        [frame] = FrameDecoder().feed(encode(header, b"print(1){}"))
        # A channel of its own: what the host says meanwhile is not for this run.
        null = os.open(os.devnull, os.O_WRONLY)
        quiet = os.pipe()
        channel, self._channel = self._channel, Channel(quiet[0], null)
        self._run(frame)
        self._channel = channel
        for fd in (null, *quiet):
            os.close(fd)

    def _run(self, frame: Frame) -> None:
        child, self._child = self._child, None
        assert child is not None
        run = Run(self._channel, child, frame.header, self._accounts, self._wake_r)
        run.hand_over(frame)
        try:
            run.watch()
        finally:
            self._kill_all(child, run)
        run.finish()

    def _kill_all(self, child: Child, run: Run) -> None:
        """Kill every process of the run and wait until all are gone."""
        while True:
            try:
                if self._owns_namespace:
                    os.kill(-1, signal.SIGKILL)
                elif not run.ended:
                    os.killpg(child.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
            if run.reap():
                return
            select.select([self._wake_r], [], [], _KILL_AGAIN_SECONDS)


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
        header = {
            "language": frame.header["language"],
            "cpu_seconds": frame.header["cpu_seconds"],
            "restricted": frame.header.get("restricted"),
            "inputs": json.loads(frame.payload[size:] or b"{}"),
        }
        text = json.dumps(header).encode() + b"\n" + frame.payload[:size]
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
        for fd in pipes:
            poller.register(fd, select.POLLIN)
        while self._status is None and self._reason is None:
            for fd, _ in poller.poll(self._patience(deadline) * 1000):
                if fd in pipes:
                    if not self._read(fd):
                        poller.unregister(fd)
                elif fd == self._wake_fd:
                    self._drain_wakeups()
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

    def _drain_wakeups(self) -> None:
        try:
            os.read(self._wake_fd, 4096)
        except BlockingIOError:
            pass

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

    def finish(self) -> None:
        """Send what is left of the output, and the verdict."""
        for fd in (self._child.stdout, self._child.stderr, self._child.result):
            self._drain(fd)
            os.close(fd)
        setup, _, report = bytes(self._result).partition(b"\n")
        try:
            first = json.loads(setup)
        except ValueError:
            first = {"error": "the program's process died before it was confined"}
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
