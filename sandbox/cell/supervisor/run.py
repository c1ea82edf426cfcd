"""One run, as the supervisor sees it: hand-over, limits, output, report."""

from __future__ import annotations

import json
import os
import select
import signal
import time

from ..program import values
from ..program.requests import frame_request
from ..wire.frames import REPORT_DEFAULTS, RUN_DEFAULTS, encode, omit_defaults
from .accounting import ProcessMeter
from .call_relay import CallRelay, forget_calls
from .output_buffer import OutputBuffer
from .write_queue import WriteQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from typing import Any, Callable

    from ..processes.relay import ProcessRelay
    from ..wire.channel import SupervisorChannel
    from ..wire.frames import Frame
    from .accounting import ResourceAccounting
    from .egress_relay import EgressRelay


_MAX_RESULT_BYTES = values.MAX_RESULT_BYTES + 256 * 1024
_READ_BYTES = 65536
# Most programs are over before it pays to listen to each of their writes.
_UNPOLLED_SECONDS = 0.002
# How long a program that keeps state may take to obey SIGINT.
_INTERRUPT_SECONDS = 0.5
# How often to look at a program whose output the host does not read.
_UNREAD_SECONDS = 0.05
# The wait status of a child that was already gone when its run began.
_EXIT_CHILD_GONE = 70 << 8


class Child:
    """A program's process and our ends of what leads to it.

    Args:
        pid: The process.
        request: A socket that takes requests, not blocking.
        stdout: A pipe, not blocking.
        stderr: A pipe, not blocking.
        result: A socket, not blocking; its first line is ours, written before any
            program ran. What is in a pipe its writer could take back.
    """

    __slots__ = (
        "cpu_seconds",
        "folder",
        "meter",
        "pid",
        "request",
        "result",
        "setup",
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
        # Of a process that lives on.
        self.meter: ProcessMeter | None = None
        # What it had used before this run; None: what its first line says.
        self.cpu_seconds: float | None = None

    def close(self) -> None:
        for fd in (self.request, self.stdout, self.stderr, self.result):
            os.close(fd)
        if self.meter is not None:
            self.meter.close()


def drain(fd: int) -> None:
    """Forget the wake-ups that a non-blocking pipe holds."""
    try:
        os.read(fd, 4096)
    except BlockingIOError:
        pass


def _readable(fds: tuple[int, ...]) -> list[int]:
    """Return those that have something to read, or have ended."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return [fd for fd, _ in poller.poll(0)]


class Run:
    """One program: from the hand-over to the last byte of its output."""

    def __init__(
        self,
        channel: SupervisorChannel,
        child: Child,
        request: dict[str, Any],
        accounting: ResourceAccounting,
        wake_fd: int,
        egress: EgressRelay | None = None,
    ) -> None:
        self._channel = channel
        self._child = child
        self._request = request
        self._accounting = accounting
        self._wake_fd = wake_fd
        self._egress = egress
        self._live = bool(request["branch"])
        self._answered = False
        cap = request["output_bytes"]
        self._buffers = {
            child.stdout: OutputBuffer("stdout", cap, request["streamed"]),
            child.stderr: OutputBuffer("stderr", cap, request["streamed"]),
        }
        self._pipes = (child.stdout, child.stderr, child.result)
        self._result = bytearray()
        self._reason: str | None = None
        self._status: int | None = None
        self._cpu_seconds = 0.0
        self._peak_bytes = 0
        self.clean = False
        """Whether the program ended by itself and left no process."""

        self._watched = False
        self._relay: CallRelay | None = None
        if request["tools"]:
            self._relay = CallRelay(child.request, child.write_queue, channel, request)
        self._started = time.monotonic()
        self._ended = self._started
        self._deadline = self._started
        # What runs beside it, and who takes frames about that.
        self.commands: tuple[ProcessRelay, Callable[[Frame], None]] | None = None

    def hand_over(self, frame: Frame) -> None:
        """Give the child its program; a child that is already dead is noticed later."""
        request = self._request
        self._accounting.begin(self._child.pid, request)
        size = request["code_bytes"]
        if size is None:
            size = len(frame.payload)
        code, inputs = frame.payload[:size], frame.payload[size:]
        header = frame.text
        if request["variables"]:
            header = json.dumps(omit_defaults(request, RUN_DEFAULTS)).encode()
        child = self._child
        if self._relay is not None and self._live:
            forget_calls(child.request)
        # A program that was stopped may never read it.
        child.write_queue.add(frame_request(header, inputs, code))
        child.write_queue.push()
        self._started = time.monotonic()

    def watch(self) -> None:
        """Read, send and keep the limits until the program ends or must end."""
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        poller.register(self._channel.read_fd, select.POLLIN)
        if self._live:
            poller.register(self._child.result, select.POLLIN)
        self._watch_request(poller)
        if self._egress is not None:
            poller.register(self._egress.fd, select.POLLIN)
        if self.commands is not None:
            self.commands[0].watch(poller)
        self._deadline = self._started + self._request["wall_seconds"]
        self._await_first_event(poller)
        if self._goes_on:
            self._listen_on(poller)
        self._child.write_queue.forget()
        if self._egress is not None:
            self._egress.close_streams()
        self._ended = time.monotonic()

    def _listen_on(self, poller: select.poll) -> None:
        for fd in self._pipes:
            poller.register(fd, select.POLLIN)
        self._channel.await_room = self._await_room
        while self._goes_on and self._reason is None:
            self._listen(poller, self._poll_seconds())
            self._keep_limits()
        if self._live and self._goes_on:
            self._interrupt(poller)
        self._channel.await_room = None

    def _await_first_event(self, poller: select.poll) -> None:
        events = dict(poller.poll(_UNPOLLED_SECONDS * 1000))
        if self._wake_fd in events:
            drain(self._wake_fd)
        if self._child.result in events:
            self._read(self._child.result)
        if self._wake_fd in events or not self._answered:
            self.reap()

    @property
    def _goes_on(self) -> bool:
        return self._status is None and not self._answered

    def _listen(self, poller: select.poll, seconds: float) -> None:
        """Wait for something to happen and take it in."""
        for fd, events in poller.poll(seconds * 1000):
            if fd == self._child.request:
                self._serve_request(poller, events)
            elif fd in self._pipes:
                if not self._read(fd):
                    poller.unregister(fd)
            elif fd == self._wake_fd:
                drain(self._wake_fd)
                self.reap()
            elif self._egress is not None and fd == self._egress.fd:
                self._egress.pump()
            elif self.commands is not None and self.commands[0].owns(fd):
                self.commands[0].pump(poller)
            else:
                self._channel.read_more()
                while (frame := self._channel.take()) is not None:
                    self._handle_frame(frame, poller)

    def _serve_request(self, poller: select.poll, events: int) -> None:
        self._child.write_queue.push()
        if self._relay is not None:
            if events & ~select.POLLOUT:
                self._relay.take_in()
            self._relay.pass_on()
        self._watch_request(poller)

    def _watch_request(self, poller: select.poll) -> None:
        """Listen for what the program's own socket can give or take now."""
        events = select.POLLOUT if self._child.write_queue.pending else 0
        if self._relay is not None and self._relay.listens:
            events |= select.POLLIN
        if events:
            poller.register(self._child.request, events)
        elif self._watched:
            poller.unregister(self._child.request)
        self._watched = bool(events)

    def _interrupt(self, poller: select.poll) -> None:
        """Ask a program that must end, and whose state is worth keeping."""
        os.kill(self._child.pid, signal.SIGINT)
        until = time.monotonic() + _INTERRUPT_SECONDS
        while self._goes_on and time.monotonic() < until:
            self._listen(poller, min(until - time.monotonic(), 0.05))

    def _poll_seconds(self) -> float:
        seconds = self._deadline - time.monotonic()
        if self._accounting.must_watch(self._request):
            seconds = min(seconds, self._accounting.next_check_in())
        for buffer in self._buffers.values():
            seconds = min(seconds, buffer.flush_due_in())
        return max(seconds, 0.0)

    def _keep_limits(self) -> None:
        if self._status is not None or self._reason is not None:
            return
        for buffer in self._buffers.values():
            if buffer.flush_due_in() <= 0:
                self._channel.send(*buffer.live_frames())
            if buffer.dropped and self._request["stop_at_output_limit"]:
                self._reason = self._reason or "output_limit"
        self._judge()

    def _judge(self) -> None:
        """Find why the program must end, if it must."""
        if not self._goes_on or self._reason is not None:
            return
        if time.monotonic() >= self._deadline:
            self._reason = "timeout"
        elif self._accounting.must_watch(self._request):
            self._reason = self._accounting.exceeded(self._request)

    def _await_room(self, write_fd: int) -> bool:
        """Wait for the host to read; False once the program is over, or must be."""
        self._judge()
        if not self._goes_on or self._reason is not None:
            return False
        seconds = min(self._deadline - time.monotonic(), _UNREAD_SECONDS)
        select.select([self._wake_fd], [write_fd], [], max(seconds, 0.0))
        drain(self._wake_fd)
        self.reap()
        if self._live:
            self._read(self._child.result)
        return True

    def _handle_frame(self, frame: Frame, poller: select.poll) -> None:
        if frame.header["type"] == "stop":
            self._reason = self._reason or "cancelled"
        elif frame.header["type"] == "extend":
            # The host stops the clock while a person thinks, and starts it again.
            self._deadline += frame.header["seconds"]
        elif frame.header["type"] == "answer" and self._relay is not None:
            self._relay.answer(frame.payload)
            self._watch_request(poller)
        elif frame.header["type"].startswith("net_") and self._egress is not None:
            self._egress.handle_frame(frame)
        elif frame.header["type"].startswith("exec_") and self.commands is not None:
            relay, take = self.commands
            take(frame)
            relay.watch(poller)

    def _read(self, fd: int) -> bool:
        """Take what a pipe holds; False at its end."""
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._add(fd, data)
        return True

    def _add(self, fd: int, data: bytes) -> None:
        if fd != self._child.result:
            self._buffers[fd].add(data)
            return
        self._result += data[: _MAX_RESULT_BYTES - len(self._result)]
        if self._live and b"\n" in data:
            self._answered = b"\n" in self._split_result()[1]

    @property
    def kept(self) -> bool:
        """Whether the program's process lives on with its state."""
        return self._live and self._answered and self._status is None

    @property
    def is_over(self) -> bool:
        """Whether the program has ended, or answered and lives on."""
        return self.kept or self.ended

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
                    self._status = _EXIT_CHILD_GONE
                return True
            if pid == 0:
                return False
            self._count(pid, usage)
            if pid == self._child.pid:
                self._status = status

    def _count(self, pid: int, usage: resource.struct_rusage) -> None:
        if not self._live or pid == self._child.pid:
            self._cpu_seconds += usage.ru_utime + usage.ru_stime
            self._peak_bytes = max(self._peak_bytes, usage.ru_maxrss * 1024)

    def strays(self, living: set[int]) -> list[int]:
        """Return the children that belong neither to this run nor to `living`."""
        own = {self._child.pid} if self.kept else set()
        return [pid for pid in self._accounting.children() if pid not in living | own]

    def _split_result(self) -> tuple[dict[str, Any], bytes]:
        """Split the result pipe into our setup line and the program's report."""
        if self._child.setup is not None:
            return self._child.setup, bytes(self._result)
        setup, newline, report = bytes(self._result).partition(b"\n")
        try:
            if newline:
                return json.loads(setup), report
        except ValueError:
            pass
        if self._reason is not None:
            # Ended by us before the program had its turn.
            return {}, report
        return {"error": "the program's process died before it was confined"}, report

    def finish(self, lost: str | None, artifacts: bool = False) -> None:
        """Send what is left of the output, and the report.

        Args:
            lost: Why the state that this run asked for was gone, if it was.
            artifacts: Whether files that the program left are sent after it.
        """
        kept = self.kept
        for fd in _readable(self._pipes) if kept else self._pipes:
            self._drain(fd)
        # A process that lives on has told of them in its first run.
        known = self._child.setup is not None
        first, program_report = self._split_result()
        if kept:
            # What a program wrote after its report belongs to nobody.
            program_report = program_report[: program_report.find(b"\n") + 1]
            if self._child.meter is None:
                self._child.meter = ProcessMeter(self._child.pid)
            self._cpu_seconds, self._peak_bytes = self._child.meter.read()
            self._child.setup = first
        else:
            self._child.close()
        before = self._child.cpu_seconds
        if before is None:
            before = first.get("cpu", 0.0)
        self._child.cpu_seconds = self._cpu_seconds
        used = max(
            self._cpu_seconds - before, self._accounting.cpu_seconds(self._request), 0.0
        )
        header = {
            "type": "finished",
            "reason": self._reason,
            "wait_status": self._status,
            "state": ("kept" if kept else "lost") if self._live else None,
            "lost": lost,
            "wall_ms": (self._ended - self._started) * 1000,
            "cpu_ms": used * 1000,
            "peak_memory_bytes": self._peak_bytes,
            "oom_kills": self._oom_kills(program_report),
            "layers": None if known else first.get("layers", []),
            "setup_error": first.get("error"),
            "artifacts": artifacts,
            "clean": self.clean,
        }
        frames = [
            frame for buffer in self._buffers.values() for frame in buffer.last_frames()
        ]
        header = omit_defaults(header, REPORT_DEFAULTS)
        self._channel.send(*frames, encode(header, program_report))

    def _oom_kills(self, program_report: bytes) -> int:
        # What lives on was not killed, and may say that it lacked memory.
        if self.kept and b"MemoryError" not in program_report:
            return 0
        return self._accounting.oom_kills()

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
