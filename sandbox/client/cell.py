"""The host's end of one cell: programs go in, reports come out."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import anyio

from toolcell.core import CellLostError, SandboxUnavailableError

from ..cell.wire.frames import Frame, FrameError, encode, encode_header, frame_prefix
from ..network.run_clock import RunClock
from .channel import Channel
from .handshake import Handshake
from .host_calls import CallServer, HostCalls, UnansweredCalls
from .memory_kills import MemoryKills
from .questions import INTERRUPT_SECONDS, OnAnswer, Questions
from .request_encoder import RequestEncoder
from .types import NOBODY, CellProcess, CellTraits, Listener, Program

if TYPE_CHECKING:
    from ..network.egress import Egress
    from ..results.result import ExecutionResult
    from .run_report import RunReport

# The supervisor keeps the limit; on a busy machine its report, with output and usage,
# comes late.
_GRACE_SECONDS = 1.0
# A session has more time, since the backstop ends it as a whole. Where a hundred
# processes share two CPUs it takes 7 seconds to interrupt a program.
_SESSION_GRACE_SECONDS = 30.0
# For the cell's own COLLECT_SECONDS, and to bring 16 MiB; the report is in by then.
_COLLECT_SECONDS = 30.0
# The supervisor keeps the limit, RENEWAL_SECONDS; its report may be late.
_RENEWAL_SECONDS = 1.0
_LOST = (CellLostError, SandboxUnavailableError)
_NO_MEMORY = "the cell ran out of memory"
_OVERDUE = "the supervisor did not end a run in time; the machine may be overloaded"


class Cell:
    """One cell and the channel to its supervisor.

    One run or one question is under way at a time; the callers take care of that. Where
    one is left halfway (`lasting`), `settled` is False and the cell can only be killed.
    Whatever happens, `kill` has to be called in the end; `async with` does.

    Args:
        channel: Leads to it.
        process: The handle by which it is killed.
        traits: The promises of its backend.
        settings: Settings of the walls around its programs, for the supervisor.
        on_code: Called with the supervisor's own modules, compiled by the cell's
            interpreter before any program ran. They are untrusted here, and only sent
            to other cells.
    """

    def __init__(
        self,
        channel: Channel,
        process: CellProcess,
        traits: CellTraits,
        settings: dict[str, Any],
        on_code: Callable[[bytes], None] | None = None,
    ) -> None:
        self._channel = channel
        self.handshake = Handshake(channel, settings, on_code)
        self._questions = Questions(channel, self.handshake)
        self._process = process
        self._layers: tuple[str, ...] = ()
        self._requests = RequestEncoder(traits)
        self._killing: anyio.Lock | None = None
        self._judging = anyio.Lock(fast_acquire=True)
        self._busy = False
        # False while a run has no whole report.
        self._is_over = True
        self._egress: Egress | None = None
        self._idle: anyio.Event | None = None
        self._report: RunReport | None = None
        # By branch: what no result could tell, since nobody waited for it.
        self._untold_losses: dict[str | None, str] = {}
        self.memory_kills = MemoryKills()
        self.traits = traits
        self.lasting = False
        """True after `keep`: a run or a question whose caller is cancelled is ended in
        `INTERRUPT_SECONDS`, so that others may follow; else it ends with the cell."""

        self.program_number = 1
        """The number of the program that it runs, or will run next."""

        self.clean = False
        """True if its last program ended cleanly, so that it can be made new."""

        self.gone = False
        """True once nothing of the cell is left."""

        self.why_ended = ""
        """The reason why a run ended the cell; empty if none did or none is known."""

        self.on_gone: Callable[[], object] = lambda: None
        """Called once, when nothing of the cell is left."""

    @property
    def settled(self) -> bool:
        """False while a run or a question has no whole answer, so none may follow."""
        return self._is_over and not self._questions.is_open

    async def keep(self) -> None:
        """Use the cell for a session, before anything else is sent.

        Raises:
            CellLostError: The cell is gone.
            SandboxUnavailableError: The cell did not start.
        """
        self.lasting = True
        await self.handshake.send(self.handshake.hello() + encode({"type": "keep"}))

    async def wait_ready(self) -> None:
        """Wait until the supervisor has prepared a process.

        Raises:
            SandboxUnavailableError: It could not, or did not in 30 seconds.
        """
        await self.handshake.complete()

    async def run(self, program: Program, listener: Listener = NOBODY) -> RunReport:
        """Run a program and return the report about it.

        Raises:
            CellLostError: The cell ended or broke the protocol before its report.
            SandboxUnavailableError: The cell could not confine the program.
        """
        try:
            report, clock = await self.begin(program)
            with clock.scope() as backstop:
                async with self._answering(program.calls, clock) as server:
                    while not await self.step(report, listener, server, program.egress):
                        pass
            if backstop.cancelled_caught:
                await self.give_up(report)
            await self.collect(report)
            await self.require_confined(report)
            return report
        except BaseException as error:
            await self.abandon(program, error)
            raise
        finally:
            await self.end(program)

    async def wait_idle(self) -> None:
        """Wait until no run is under way."""
        while self._busy:
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()

    def _answering(
        self, calls: HostCalls | None, clock: RunClock
    ) -> AbstractAsyncContextManager[CallServer | None]:
        if calls is None:
            return contextlib.nullcontext()
        return CallServer(calls, self.send_frame, clock)

    async def abandon(self, program: Program, error: BaseException) -> None:
        """Interrupt a run that nobody follows any more; its session goes on.

        Args:
            program: The program.
            error: Why: its caller was cancelled, or a function of the caller raised.
        """
        if self.settled or not self.lasting or isinstance(error, _LOST):
            return
        report = self._report
        assert report is not None
        with anyio.move_on_after(INTERRUPT_SECONDS, shield=True):
            # A cell that is lost meanwhile stays unsettled.
            with contextlib.suppress(*_LOST):
                await self.wait_ready()
                await self._interrupt(report, program.egress)
        if not self.settled:
            self.why_ended = self.why_ended or (
                f"a run was cancelled and did not end in {INTERRUPT_SECONDS:g} seconds"
            )
            await self.kill()
        elif report.state == "lost":
            why = "a run was cancelled and did not end when it was interrupted"
            self._untold_losses[program.branch] = why

    async def _interrupt(self, report: RunReport, egress: Egress | None) -> None:
        ended, server = report.collecting, UnansweredCalls()
        async with anyio.create_task_group() as tasks:
            # It may not read ours while its own output fills the channel.
            tasks.start_soon(self.stop)
            with contextlib.suppress(CellLostError):
                while not ended:
                    ended = await self.step(report, NOBODY, server, egress)
                await self.collect(report)

    async def begin(self, program: Program) -> tuple[RunReport, RunClock]:
        """Send a program; `step` follows its run, and `end` must be called last.

        Returns:
            The report, still empty, and the clock of the run.

        Raises:
            CellLostError: The cell is gone.
            SandboxUnavailableError: The cell did not start.
        """
        request = self._requests.encode(program)
        clock = RunClock(self._extend, program.max_pause_seconds)
        self._busy, self._egress = True, program.egress
        if program.egress is not None:
            program.egress.begin(self.send_frame, clock)
        self._is_over = False
        # One send: the supervisor then reads its first request at once.
        try:
            await self.handshake.send(self.handshake.hello() + request)
        finally:
            # Imported while the cell starts the program: 3 ms of a process's first run.
            from .run_report import RunReport

            report = self._report = RunReport.of(program)
        await self.wait_ready()
        report.began = time.monotonic()
        clock.deadline = _backstop(program)
        return report, clock

    async def _extend(self, seconds: float) -> None:
        await self.send_frame({"type": "extend", "seconds": seconds})

    async def end(self, program: Program) -> None:
        """Clean up after a program, however it ended.

        Raises:
            Exception: Its `on_connection` raised it.
        """
        try:
            if program.egress is not None:
                await program.egress.aclose()
        finally:
            self._busy = False
            if self._idle is not None:
                self._idle.set()
                self._idle = None

    async def give_up(self, report: RunReport, why: str = _OVERDUE) -> None:
        """End a run, and its cell, whose supervisor missed the deadline or is gone."""
        # Nobody else has measured it.
        report.wall_ms = (time.monotonic() - report.began) * 1000
        report.overdue = report.reason is None
        if self.lasting:
            report.state = "lost"
        self.why_ended = why
        await self.kill()

    async def collect(self, report: RunReport) -> None:
        """Receive the files that the program left.

        The result holds without them: a cell that fails meanwhile is killed.
        """
        if not report.collecting:
            return
        try:
            with anyio.fail_after(_COLLECT_SECONDS):
                while report.collecting:
                    report.collect(await self._channel.receive())
        except TimeoutError:
            why = f"it took {_COLLECT_SECONDS:g} seconds"
        except CellLostError as error:
            why = error.message
        except (FrameError, KeyError, TypeError) as error:
            why = f"the cell sent a bad frame: {error}"
        else:
            self._is_over = True
            return
        report.cut_short(why)
        self.why_ended = f"the artifacts of a run could not be collected: {why}"
        await self.kill()

    async def require_confined(self, report: RunReport) -> None:
        """Raise SandboxUnavailableError if the program was never confined."""
        if report.setup_error:
            await self.kill()
            raise SandboxUnavailableError(
                f"the cell could not confine the program: {report.setup_error}",
                hint="run `toolcell doctor` to see which layers hold",
            )

    async def ask(
        self,
        header: dict[str, Any],
        payload: bytes | memoryview = b"",
        on_answer: OnAnswer | None = None,
    ) -> tuple[dict[str, Any], bytes]:
        """Return the answer to a question, as `Questions.ask`."""
        question = header, payload, on_answer
        answer = await self._questions.ask(*question, lasting=self.lasting)
        return answer.header, answer.payload

    async def send_frame(
        self, header: dict[str, Any], payload: bytes | memoryview = b""
    ) -> None:
        """Send a frame that has no answer. Raises CellLostError."""
        head = frame_prefix(encode_header(header), len(payload))
        await self._channel.send(head, payload)

    async def step(
        self,
        report: RunReport,
        listener: Listener,
        server: CallServer | UnansweredCalls | None = None,
        egress: Egress | None = None,
    ) -> bool:
        """Take in the next frame of a run; return True if it was the last one.

        Raises:
            CellLostError: The cell ended or broke the protocol.
        """
        try:
            frame = await self._channel.receive()
        except CellLostError:
            if not await self.ran_out_of_memory():
                raise
            report.reason = "out_of_memory"
            await self.give_up(report, _NO_MEMORY)
            return True
        shown = len(report.outputs)
        try:
            finished = self._take_in(frame, report, server, egress)
        except (FrameError, KeyError, TypeError, ValueError) as error:
            raise CellLostError(f"the cell sent a bad frame: {error}") from None
        # Outside of `try`: their exceptions do not come from the cell.
        listener.notify(frame, report.outputs[shown:])
        return finished

    async def ran_out_of_memory(self) -> bool:
        """Find out if a cell that has ended lacked memory; `why_ended` says so then."""
        async with self._judging:
            if self._report is not None and not self.why_ended:
                began = self._report.began
                if await self.memory_kills.ended(self._process, began):
                    self.why_ended = _NO_MEMORY
        return self.why_ended == _NO_MEMORY

    def _take_in(
        self,
        frame: Frame,
        report: RunReport,
        server: CallServer | UnansweredCalls | None,
        egress: Egress | None,
    ) -> bool:
        header, payload = frame.header, frame.payload
        kind = header["type"]
        if kind in ("output", "tail"):
            report.add_output(header, payload)
        elif kind == "display":
            report.add_display(payload)
        elif kind == "call" and server is not None:
            server.serve(payload)
        elif egress is not None and kind.startswith("net_"):
            egress.serve(header, payload)
        elif kind == "finished":
            report.finish(header, payload, self._layers)
            self._is_over = not report.collecting
            self._layers = report.layers
            self.memory_kills.note(report.oom_total)
            return True
        else:
            raise FrameError(f"unexpected frame {kind[:40]!r}")
        return False

    def result(self, report: RunReport, program: Program) -> ExecutionResult:
        """Return the result for users from a report."""
        if program.egress is not None:
            report.connections = program.egress.connections
            report.network_bytes = program.egress.spent
            report.warnings = program.egress.warnings
        if self.lasting and self.why_ended:
            report.warnings += (f"the session ended: {self.why_ended}",)
        report.lost = self._untold_losses.pop(program.branch, report.lost)
        report.program_number = self.program_number
        from .result_builder import build_result, is_clean

        result = build_result(report, program.language, program.limits, self.traits)
        self.clean = self.settled and not program.egress and is_clean(report, result)
        if program.egress is not None:
            from ..results.name_warnings import with_name_warnings

            return with_name_warnings(result, program.egress.listeners)
        return result

    async def finish_renewal(self) -> None:
        """Wait until the cell is new. Raises CellLostError if it cannot be made so.

        Its supervisor began to make it new when the last program had ended.
        """
        self.clean = False
        with anyio.move_on_after(_RENEWAL_SECONDS):
            frame = await self._channel.receive()
            if frame.header["type"] == "renewed":
                self.program_number += 1
                return
        raise CellLostError("the cell was not made new")

    async def stop(self) -> None:
        """Ask the supervisor to end the current run as `cancelled`. Never raises."""
        with contextlib.suppress(CellLostError):
            await self._channel.send(encode({"type": "stop"}))

    async def open_channel(self) -> Channel:
        """Return the channel once the supervisor is ready; no run may be on.

        Raises:
            CellLostError: The cell is gone.
            SandboxUnavailableError: The cell did not start.
        """
        await self.wait_ready()
        return self._channel

    def alive(self) -> bool:
        """Return True if the channel is open and nothing unexpected has arrived."""
        asked = self.handshake.is_under_way
        return self._killing is None and self._channel.quiet(asked=asked)

    async def kill(self) -> None:
        """Kill the cell; return when nothing of it is left. Twice is harmless.

        A native asyncio cancel ignores the shield: `gone` stays False then, and the
        next call completes the work.
        """
        self._killing = self._killing or anyio.Lock(fast_acquire=True)
        with anyio.CancelScope(shield=True):
            async with self._killing:
                if not self.gone:
                    self._channel.close()
                    if self._egress is not None:
                        self._egress.stop()
                    await self._process.kill()
                    self.gone = True
                    self.on_gone()

    async def __aenter__(self) -> Cell:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()


def _backstop(program: Program) -> float:
    """Return the time by which a working supervisor has ended the program."""
    grace = _GRACE_SECONDS if program.final else _SESSION_GRACE_SECONDS
    return anyio.current_time() + program.limits.wall_seconds + grace
