"""One run in the supervisor: request, limits, output and report."""

from __future__ import annotations

import json
import os
import select
import signal
import time

from ..kernel import signals
from ..program.requests import frame_request
from ..relays.call_door import CallDoor
from ..wire.contract import BESIDE
from ..wire.frames import REPORT_DEFAULTS, RUN_DEFAULTS, encode, omit_defaults
from .call_relay import CallRelay, forget_calls
from .child import Child, drain
from .program_output import ProgramOutput

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from typing import Any, Callable, Mapping, Protocol

    from ..accounting.usage import ResourceAccounting
    from ..processes.relay import ProcessRelay
    from ..relays.egress_relay import EgressRelay
    from ..wire.channel import SupervisorChannel
    from ..wire.frames import Frame
    from ..wire.output_page import OutputPage

    class Watch(Protocol):
        """Looks from time to time whether a limit is passed."""

        def begin(self) -> None: ...
        def due_in(self) -> float: ...
        def exceeded(self) -> bool: ...


# Most programs are over before it pays to wake up for each of their writes.
_UNPOLLED_SECONDS = 0.002
# Output in pieces below this size is read at these intervals.
_SMALL_BYTES = 16384
_GATHER_SECONDS = 0.002
# Time that a program that keeps state has to begin, if it is to end at once, and then
# to answer SIGINT.
_BEGIN_SECONDS = 1.0
_INTERRUPT_SECONDS = 0.5
# What takes too much would take more until it answers.
_AT_ONCE = "out_of_memory", "killed"
# Time to flush the line that it has begun, less what the machine did elsewhere; an idle
# one keeps a deadline within a tenth of a second.
_FLUSH_SECONDS = 0.02
_LONGEST_FLUSH_SECONDS = 0.3
# The most of it that counts as one step.
_STEP_SECONDS = 0.05
_LOOK_SECONDS = 0.005
# Interval of checks on a program whose output the host does not read.
_UNREAD_SECONDS = 0.05
# The wait status of a child that was already gone when its run began.
_EXIT_CHILD_GONE = 70 << 8
_DIED_UNCONFINED = "the program's process died before it was confined"


class Run:
    """One program, from its request to the last byte of its output.

    The caller hands the request over, then watches, then kills what is left, then
    finishes. `watch` ends when the program has ended, has answered and lives on, or
    must end; `reason` is then the limit that was reached. Until then frames of the host
    are handled here, and nothing in it blocks on the program or on the host.

    Args:
        channel: Leads to the host.
        child: The program's process.
        request: The header of the request, with defaults filled in.
        accounting: Counts the resources of this run.
        wake_fd: Readable when a signal has arrived.
        egress: Relays the program's connections; None without a network.
        watches: What the kernel does not bound, by the reason to end a run.
        page: What a program prints into; None: it has its pipes alone.
    """

    def __init__(
        self,
        channel: SupervisorChannel,
        child: Child,
        request: dict[str, Any],
        accounting: ResourceAccounting,
        wake_fd: int,
        egress: EgressRelay | None = None,
        watches: Mapping[str, Watch] | None = None,
        page: OutputPage | None = None,
    ) -> None:
        self._channel = channel
        self._child = child
        self._request = request
        self._accounting = accounting
        self._wake_fd = wake_fd
        self._egress = egress
        self._watches = watches or {}
        self.is_final = bool(request["final"])
        """True if the cell runs no other program, unless it is made new."""

        self._live = bool(request["branch"])
        self._output = ProgramOutput(child, request, page)
        self._reason: str | None = None
        self._status: int | None = None
        self._cpu_seconds = 0.0
        self._peak_bytes = 0
        self.clean = False
        """True if the program ended by itself and left no process."""

        self._watched = False
        self._holds = False
        self._relay: CallRelay | None = None
        self._door: CallDoor | None = None
        if request["tools"] and request["language"] == "bash":
            self._door = CallDoor(child.request, self._send_call, request)
        elif request["tools"]:
            # What an earlier run of a session left behind holds the socket, too.
            caller = child.pid if self._live else 0
            self._relay = CallRelay(
                child.request, child.write_queue, channel, request, caller
            )
        self._started = time.monotonic()
        self._ended = self._started
        self._deadline = self._started
        # Commands and ports beside the program, and the handler of frames about them.
        self.commands: tuple[ProcessRelay, Callable[[Frame], None]] | None = None

    def hand_over(self, frame: Frame) -> None:
        """Send the child its request; a child that is already dead is noticed later."""
        request = self._request
        self._accounting.begin(request)
        for watch in self._watches.values():
            watch.begin()
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
        """Read, send and enforce the limits until the program ends or must end."""
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        poller.register(self._channel.read_fd, select.POLLIN)
        if self._live:
            poller.register(self._child.result, select.POLLIN)
        self._watch_request(poller)
        if self._egress is not None:
            poller.register(self._egress.fd, select.POLLIN)
        if self._door is not None:
            poller.register(self._door.fd, select.POLLIN)
        if self.commands is not None:
            self.commands[0].watch(poller)
        self._deadline = self._started + self._request["wall_seconds"]
        self._await_first_event(poller)
        if self._runs:
            self._listen_on(poller)
        self._child.write_queue.forget()
        if self._egress is not None:
            self._egress.finish()
        if self._door is not None:
            self._door.close()
        self._ended = time.monotonic()

    def _listen_on(self, poller: select.poll) -> None:
        for fd in self._output.pipes:
            poller.register(fd, select.POLLIN)
        self._channel.await_room = self._await_room
        # Some may have come together with the request.
        self._handle_frames(poller)
        while self._runs and self._reason is None:
            self._hold_streams(poller, self._output.is_full)
            if self._listen(poller, self._poll_seconds()):
                self._let_gather(poller)
            self._keep_limits()
        self._hold_streams(poller, False)
        if self._live and self._runs and self._reason not in _AT_ONCE:
            self._interrupt(poller)
        if self._request["language"] == "python" and self._runs:
            self._hear_last_words(poller)
        self._channel.await_room = None

    def _let_gather(self, poller: select.poll) -> None:
        """Read no output for a moment: to be read line by line slows a program down."""
        self._hold_streams(poller, True)
        self._listen(poller, min(_GATHER_SECONDS, self._poll_seconds()))

    def _hold_streams(self, poller: select.poll, holds: bool) -> None:
        """Read no output, so that the program waits for its reader; or read it again.

        What is read leaves at once, and whoever sends to this cell takes it in.
        """
        if holds == self._holds:
            return
        self._holds = holds
        for fd in self._output.streams:
            if holds:
                poller.unregister(fd)
            else:
                poller.register(fd, select.POLLIN)

    def _await_first_event(self, poller: select.poll) -> None:
        events = dict(poller.poll(_UNPOLLED_SECONDS * 1000))
        if self._wake_fd in events:
            drain(self._wake_fd)
        if self._child.result in events:
            self._output.read(self._child.result)
        if self._wake_fd in events or not self._output.answered:
            self.reap()

    @property
    def _runs(self) -> bool:
        return self._status is None and not self._output.answered

    def _listen(self, poller: select.poll, seconds: float) -> bool:
        """Wait for events and handle them; True if output came in small pieces."""
        small = False
        for fd, events in poller.poll(seconds * 1000):
            if fd == self._child.request:
                self._serve_request(poller, events)
            elif fd in self._output.pipes:
                size = self._output.read(fd)
                if not size:
                    poller.unregister(fd)
                small = small or (fd in self._output.streams and size < _SMALL_BYTES)
            elif fd == self._wake_fd:
                drain(self._wake_fd)
                self.reap()
            elif self._egress is not None and fd == self._egress.fd:
                self._egress.pump()
            elif self._door is not None and fd == self._door.fd:
                self._door.pump()
            elif self.commands is not None and self.commands[0].owns(fd):
                self.commands[0].pump(poller)
            else:
                self._channel.read_more()
                self._handle_frames(poller)
        return small

    def _handle_frames(self, poller: select.poll) -> None:
        while (frame := self._channel.take()) is not None:
            self._handle_frame(frame, poller)

    def _send_call(self, call: bytes) -> None:
        self._channel.send(encode({"type": "call"}, call))

    def _serve_request(self, poller: select.poll, events: int) -> None:
        self._child.write_queue.push()
        if self._relay is not None:
            if events & ~select.POLLOUT:
                self._relay.take_in()
            self._relay.pass_on()
        self._watch_request(poller)

    def _watch_request(self, poller: select.poll) -> None:
        """Poll the program's socket for what can be read or written now."""
        events = select.POLLOUT if self._child.write_queue.pending else 0
        if self._relay is not None and self._relay.listens:
            events |= select.POLLIN
        if events:
            poller.register(self._child.request, events)
        elif self._watched:
            poller.unregister(self._child.request)
        self._watched = bool(events)

    def _hear_last_words(self, poller: select.poll) -> None:
        """Let a program flush the line that it has begun, before it is killed."""
        self._output.await_flush()
        os.kill(self._child.pid, signals.LAST_WORDS)
        left, until = _FLUSH_SECONDS, time.monotonic() + _LONGEST_FLUSH_SECONDS
        while self._runs and left > 0 and not self._output.is_flushed:
            left = min(left - self._step(poller, 0.005), until - time.monotonic())

    def _interrupt(self, poller: select.poll) -> None:
        """Interrupt a program by SIGINT, so that it ends and keeps its state."""
        left = _BEGIN_SECONDS
        # Before it has begun the signal would be lost.
        while self._runs and left > 0 and not self._output.has_begun:
            left -= self._step(poller, _LOOK_SECONDS)
        if self._runs:
            os.kill(self._child.pid, signal.SIGINT)
        left = _INTERRUPT_SECONDS
        while self._runs and left > 0:
            left -= self._step(poller, _STEP_SECONDS)

    def _step(self, poller: select.poll, seconds: float) -> float:
        """Wait for events and handle them; return the seconds that the program had."""
        began = time.monotonic()
        self._listen(poller, seconds)
        # While the machine stood still it had no time.
        return min(time.monotonic() - began, seconds)

    def _poll_seconds(self) -> float:
        seconds = self._deadline - time.monotonic()
        if self._accounting.must_watch(self._request):
            seconds = min(seconds, self._accounting.next_check_in())
        for watch in self._watches.values():
            seconds = min(seconds, watch.due_in())
        return max(min(seconds, self._output.flush_due_in()), 0.0)

    def _keep_limits(self) -> None:
        if self._status is not None or self._reason is not None:
            return
        if self._output.flush_due_in() <= 0:
            self._channel.send(*self._output.due_frames())
        if self._output.dropped and self._request["stop_at_output_limit"]:
            self._reason = self._reason or "output_limit"
        self._check_limits()

    def _check_limits(self) -> None:
        """Set the reason if a limit is reached."""
        if not self._runs or self._reason is not None:
            return
        if time.monotonic() >= self._deadline:
            self._reason = "timeout"
        elif self._accounting.must_watch(self._request):
            self._reason = self._accounting.exceeded(self._request)
        for reason, watch in self._watches.items():
            if self._reason is None and watch.exceeded():
                self._reason = reason
                if reason == "disk_limit" and self.commands is not None:
                    # The program has time to end, in which they would write on.
                    self.commands[0].forward({"type": "exec_full"}, b"", {}, -1)

    def _await_room(self, write_fd: int) -> bool:
        """Wait for the host to read; False once the program has ended, or must end."""
        self._check_limits()
        if not self._runs or self._reason is not None:
            return False
        seconds = min(self._poll_seconds(), _UNREAD_SECONDS)
        select.select([self._wake_fd], [write_fd], [], max(seconds, 0.0))
        drain(self._wake_fd)
        self.reap()
        if self._live:
            self._output.read(self._child.result)
        return True

    def _handle_frame(self, frame: Frame, poller: select.poll) -> None:
        if frame.header["type"] == "stop":
            self._reason = self._reason or "cancelled"
        elif frame.header["type"] == "room":
            self._output.give_room(frame.header["bytes"])
        elif frame.header["type"] == "extend":
            # The host extends the deadline by the time that a person took to answer.
            self._deadline += frame.header["seconds"]
        elif frame.header["type"] == "answer" and self._relay is not None:
            self._relay.answer(frame.payload)
            self._watch_request(poller)
        elif frame.header["type"] == "answer" and self._door is not None:
            self._door.answer(frame.payload)
        elif frame.header["type"].startswith("net_") and self._egress is not None:
            self._egress.handle_frame(frame)
        elif frame.header["type"].startswith(BESIDE) and self.commands is not None:
            relay, take = self.commands
            take(frame)
            relay.watch(poller)

    @property
    def kept(self) -> bool:
        """True if the program's process lives on with its state."""
        return self._live and self._output.answered and self._status is None

    @property
    def is_over(self) -> bool:
        """True if the program has ended, or has answered and lives on."""
        return self.kept or self.ended

    @property
    def ended(self) -> bool:
        """True if the program's own process has been collected."""
        return self._status is not None

    @property
    def killed_for_memory(self) -> bool:
        """True if a kill for memory, and no limit of ours, ended the program."""
        killed = self._status == signal.SIGKILL and self._reason is None
        return killed and self._accounting.oom_kills(begun=self._output.has_begun) > 0

    def reap(self) -> bool:
        """Collect ended processes and their usage. True if no process is left."""
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
                if self._accounting.gave_up(status, usage):
                    self._reason = self._reason or "out_of_memory"

    def _count(self, pid: int, usage: resource.struct_rusage) -> None:
        if not self._live or pid == self._child.pid:
            self._cpu_seconds += usage.ru_utime + usage.ru_stime
            self._peak_bytes = max(self._peak_bytes, usage.ru_maxrss * 1024)

    def strays(self, living: set[int]) -> list[int]:
        """Return the children that belong neither to this run nor to `living`."""
        own = {self._child.pid} if self.kept else set()
        return [pid for pid in self._accounting.children() if pid not in living | own]

    def finish(self, lost: str | None, artifacts: bool = False) -> None:
        """Send the rest of the output, and the report.

        Args:
            lost: The reason why the state that this run asked for was gone, if it was.
            artifacts: True if files that the program left are sent after the report.
        """
        kept = self.kept
        if kept and self._reason in _AT_ONCE:
            # It had answered already. The next look, between runs, judges what stayed.
            self._reason = None
        self._output.read_rest(kept=kept)
        # A process that keeps state has reported its layers in its first run.
        layers_known = self._child.setup is not None
        setup, program_report = self._output.split_result()
        if setup is None:
            # One that was killed may have died before the program started.
            killed = self._reason is not None or self.killed_for_memory
            setup = {} if killed else {"error": _DIED_UNCONFINED}
        if kept:
            # Bytes that a program wrote after its report belong to no run.
            program_report = program_report[: program_report.find(b"\n") + 1]
            self._child.setup = setup
        cpu_seconds = self._measure(setup)
        if not kept:
            self._child.close()
        header = {
            "type": "finished",
            "reason": self._reason,
            "wait_status": self._status,
            "state": ("kept" if kept else "lost") if self._live else None,
            "lost": lost,
            "wall_ms": (self._ended - self._started) * 1000,
            "cpu_ms": cpu_seconds * 1000,
            "peak_memory_bytes": self._peak_bytes,
            "oom_kills": self._accounting.oom_kills(begun=self._output.has_begun),
            "oom_total": self._accounting.oom_total(),
            "layers": None if layers_known else setup.get("layers", []),
            "setup_error": setup.get("error"),
            "artifacts": artifacts,
            "clean": self.clean,
            "outputs_left": self._output.outputs_left_out,
        }
        header = omit_defaults(header, REPORT_DEFAULTS)
        report = encode(header, program_report)
        self._channel.send(*self._output.last_frames(), report)

    def _measure(self, setup: dict[str, Any]) -> float:
        """Return the CPU seconds of this run; a process that lives on is measured."""
        if self.kept:
            self._cpu_seconds, self._peak_bytes = self._child.measure()
        used = self._child.charge(self._cpu_seconds, setup)
        return max(used, self._accounting.cpu_seconds(self._request), 0.0)
