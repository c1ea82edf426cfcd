"""The commands of one cell: starts them and hands each what the cell says of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import anyio

from toolcell.core import CellLostError, InvalidInputError

from ..cell.wire.frames import Frame
from ..client.file_errors import known
from ..client.header_numbers import MAX_PID, whole
from ..client.types import CellTraits
from ..config.settings import Limits
from ..network.run_clock import RunClock
from .calls import CommandCalls
from .network import CommandNetwork
from .process import Process, checked_size, checked_timeout
from .side_channel import SideChannel

if TYPE_CHECKING:
    from ..client.host_calls import HostCalls
    from ..network.egress import Egress

_SHELL = ("bash", "--norc", "--noprofile", "-c")
# Linux takes a quarter of the stack limit, 2 MiB by default (execve(2)).
_MAX_BYTES = 1536 * 1024
_START_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """A checked request of `Session.exec`.

    Raises:
        InvalidInputError: It cannot be started anywhere.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str = ""
    stdin: bytes | Literal["pipe"] | None = field(default=None, repr=False)
    timeout_seconds: float | None = None
    pty: tuple[int, int] | None = None
    background: bool = False
    packages: str = ""
    """The path of its packages in the cell; empty if it has none."""

    def __post_init__(self) -> None:
        texts = (*self.argv, *self.env, *self.env.values(), self.cwd)
        if not all(isinstance(text, str) for text in texts) or not self.argv:
            raise _no_command()
        try:
            size = sum(len(text.encode()) for text in texts)
        except UnicodeEncodeError:
            raise _unusable("it is not valid Unicode") from None
        odd_name = any("=" in name or not name for name in self.env)
        if any("\0" in text for text in texts) or not self.argv[0] or odd_name:
            raise _unusable("a text holds NUL, or a name is empty or holds '='")
        if size > _MAX_BYTES:
            raise _unusable(f"it has {size} bytes, the limit is {_MAX_BYTES}")
        if not (self.stdin in (None, "pipe") or isinstance(self.stdin, bytes)):
            raise _unusable("stdin is bytes, 'pipe' or None")
        checked_timeout(self.timeout_seconds)
        if self.pty is not None:
            checked_size(self.pty)


def _unusable(why: str) -> InvalidInputError:
    return InvalidInputError(
        f"the command cannot be used: {why}", hint="pass large data as files or stdin"
    )


def argv_of(command: str | Sequence[str]) -> tuple[str, ...]:
    """Return the program and arguments of a command; bash runs a text.

    Raises:
        InvalidInputError: It is neither text nor a list.
    """
    if isinstance(command, str):
        return (*_SHELL, command)
    if not isinstance(command, Sequence):
        raise _no_command()
    return tuple(command)


def _no_command() -> InvalidInputError:
    return InvalidInputError(
        "a command is text, or a list of texts",
        hint='write it like "ls -l" or ["ls", "-l"]',
    )


class ProcessTable:
    """Starts commands in a cell and follows them.

    Output, ends and room for input arrive whether or not a program runs in the cell. A
    cell that is gone ends all of its commands without a result.

    Args:
        frames: Leads to the cell.
        traits: What the cell's backend promises.
        on_memory_kills: Told how many processes of the cell were killed for memory.
    """

    def __init__(
        self,
        frames: SideChannel,
        traits: CellTraits,
        on_memory_kills: Callable[[int], None],
    ) -> None:
        self._frames = frames
        self._traits = traits
        self._on_memory_kills = on_memory_kills
        self._spawn = frames.spawn
        self._made = 0
        self._living: dict[int, Process] = {}
        self._starting: dict[int, anyio.Event] = {}
        self._failures: dict[int, InvalidInputError] = {}
        frames.add("exec", self)
        frames.add("reach", self)

    @property
    def is_busy(self) -> bool:
        """True while a command lives."""
        return bool(self._living)

    @property
    def living(self) -> tuple[Process, ...]:
        """The commands that have started and not ended."""
        return tuple(self._living.values())

    async def start(
        self,
        command: CommandRequest,
        limits: Limits,
        branch: str,
        egress: Egress | None = None,
        calls: HostCalls | None = None,
    ) -> Process:
        """Start a command; return when it runs.

        Args:
            command: What to start.
            limits: Their `output_bytes` bound what its result keeps.
            branch: The branch of the session in whose work dir it starts.
            egress: Its way to the network; None if it has none.
            calls: What it may call of the host; None if that is nothing.

        Raises:
            InvalidInputError: It cannot be started; the error says why.
            CellLostError: The cell is gone.
        """
        self._made += 1
        number = self._made
        process = Process(
            self._frames.send,
            self.give_credit,
            number,
            command.argv,
            limits=limits,
            traits=self._traits,
            has_terminal=command.pty is not None,
            has_input=command.stdin is not None or command.pty is not None,
            background=command.background,
        )
        # One for both: who waits for two persons at once waits once.
        clock = RunClock(partial(self._extend, number), _longest_pause(egress, calls))
        if egress is not None:
            process.network = CommandNetwork(egress, number, self._frames, clock)
        if calls is not None:
            process.calls = CommandCalls(calls, number, self._frames, clock)
        try:
            if process.calls is not None:
                await process.calls.begin(self._spawn)
            await self._begin(number, process, command, branch)
        except BaseException:
            if process.calls is not None:
                process.calls.stop()
            raise
        await self._send_input(process, command.stdin)
        return process

    async def _extend(self, number: int, seconds: float) -> None:
        header = {"type": "exec_extend", "id": number, "seconds": seconds}
        await self._frames.send(header)

    async def _begin(
        self, number: int, process: Process, command: CommandRequest, branch: str
    ) -> None:
        started = self._starting[number] = anyio.Event()
        self._living[number] = process
        self._frames.follow()
        try:
            words = {"argv": command.argv, "env": dict(command.env)}
            header = _start_header(number, command, branch, process)
            await self._frames.send(header, json.dumps(words).encode())
            with anyio.move_on_after(_START_SECONDS):
                await started.wait()
            if not started.is_set():
                why = f"the command did not start in {_START_SECONDS:g} seconds"
                raise CellLostError(why)
        except BaseException:
            self._living.pop(number, None)
            with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                await self._give_up(number)
            raise
        finally:
            self._starting.pop(number, None)
        if number in self._failures:
            raise self._failures.pop(number)
        if not process.running and not process.pid:
            raise CellLostError(f"the command did not start: {process.lost}")

    async def _give_up(self, number: int) -> None:
        try:
            await self._frames.send({"type": "exec_kill", "id": number})
        except CellLostError:
            return

    async def _send_input(
        self, process: Process, stdin: bytes | Literal["pipe"] | None
    ) -> None:
        if isinstance(stdin, bytes):
            self._spawn(self._write_all, process, stdin)

    async def _write_all(self, process: Process, data: bytes) -> None:
        try:
            await process.write(data)
            await process.close_stdin()
        except CellLostError:
            return

    def give_credit(self, number: int, size: int) -> None:
        """Let a command say so many bytes more, soon."""
        if number in self._living:
            self._spawn(self._send_credit, number, size)

    async def _send_credit(self, number: int, size: int) -> None:
        header = {"type": "exec_credit", "id": number, "bytes": size}
        try:
            await self._frames.send(header)
        except CellLostError:
            # The task that reads ends the commands.
            return

    def end_all(self, why: str) -> None:
        """End all commands without a result: what runs them is gone."""
        for number in [*self._living]:
            process = self._living.pop(number)
            if process.network is not None:
                process.network.egress.stop()
            if process.calls is not None:
                process.calls.stop()
            process.lost = why
            process.end()
        for started in self._starting.values():
            started.set()

    def handle_frame(self, frame: Frame) -> None:
        """Take what the cell says of a command.

        Raises:
            KeyError, TypeError, ValueError: It makes no sense.
        """
        header = frame.header
        if header["type"].startswith("reach_"):
            process = self._living.get(header["exec"])
            if process is not None and process.network is not None:
                process.network.serve(frame)
            return
        number = header["id"]
        process = self._living.get(number)
        if process is None:
            return
        if header["type"] == "exec_started":
            process.pid = whole(header["pid"], MAX_PID)
            self._announce(number)
        elif header["type"] == "exec_failed":
            self._failures[number] = _not_started(header)
            del self._living[number]
            self._announce(number)
        else:
            process.handle_frame(header, frame.payload)
        if header["type"] == "exec_ended":
            self._on_memory_kills(whole(header["oom_total"]))
            self._announce(number)
            self._end(number, process)

    def _end(self, number: int, process: Process) -> None:
        if process.network is None and process.calls is None:
            del self._living[number]
            process.end()
        else:
            self._spawn(self._end_slowly, number, process)

    async def _end_slowly(self, number: int, process: Process) -> None:
        """End a command after its calls, and name all of its connections."""
        if process.calls is not None:
            await process.calls.aclose()
        if process.network is not None:
            await process.network.egress.aclose()
        self._living.pop(number, None)
        process.end()

    def _announce(self, number: int) -> None:
        started = self._starting.get(number)
        if started is not None:
            started.set()


def _longest_pause(egress: Egress | None, calls: HostCalls | None) -> float:
    made_by = (each for each in (egress, calls) if each is not None)
    return max((maker.max_pause_seconds for maker in made_by), default=0.0)


def _not_started(header: dict[str, Any]) -> InvalidInputError:
    return InvalidInputError(
        f"the command cannot be started: {str(header['why'])[:1000]}",
        hint="look at its name, its folder, and how many run",
        details={"reason": known(header["reason"])},
    )


def _start_header(
    number: int, command: CommandRequest, branch: str, process: Process
) -> dict[str, Any]:
    network, calls = process.network, process.calls
    return {
        "type": "exec_start",
        "id": number,
        "cwd": command.cwd,
        "branch": branch,
        "stdin": command.stdin is not None,
        "pty": None if command.pty is None else list(command.pty),
        "timeout": command.timeout_seconds,
        "network": None if network is None else network.egress.request,
        "tools": None if calls is None else calls.request,
        "packages": command.packages,
    }
