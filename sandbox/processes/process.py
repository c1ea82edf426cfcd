"""A command that runs in a session's cell, seen from the host."""

from __future__ import annotations

import math
import signal
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

import anyio

from toolcell.core import CellLostError, InvalidInputError

from ..cell.wire.contract import PIECE_BYTES, WINDOW_BYTES
from ..client.header_numbers import MAX_WAIT_STATUS, milliseconds, whole
from ..client.types import CellTraits, Stream
from ..config.settings import Limits
from ..network.types import SendFrame
from ..results.process_end import (
    MEMORY_KILL,
    exit_of,
    signal_name,
    status_of_signal,
)
from ..results.result import (
    ExecutionResult,
    Isolation,
    Truncated,
    Usage,
)
from ..results.status import COMMAND_ENDS, Status
from .calls import CommandCalls
from .network import CommandNetwork
from .output import KeptOutput, OutputFeed

MAX_TERMINAL_SIDE = 1000
"""Rows, and columns, of a terminal. When it is exceeded the call is refused."""


class Process:
    """One command, from `Session.exec` to its end.

    It ends with its session at the latest. `wait` returns its result, which keeps the
    beginning and the end of each stream within `limits.output_bytes`; `output` yields
    everything as it comes. With a terminal all output is `stdout`.

    Args:
        send_frame: Sends a frame to the cell.
        give_credit: Lets the command with a number say so many bytes more.
        number: Its number among the commands of its cell.
        argv: The program and its arguments.
        limits: Their `output_bytes` bound what its result keeps.
        traits: What the cell's backend promises.
        has_terminal: True if it runs in a pseudo-terminal.
        has_input: True if its standard input can be written to.
        background: True if its output flows though nobody reads or waits.
    """

    def __init__(
        self,
        send_frame: SendFrame,
        give_credit: Callable[[int, int], None],
        number: int,
        argv: tuple[str, ...],
        *,
        limits: Limits,
        traits: CellTraits,
        has_terminal: bool,
        has_input: bool,
        background: bool = False,
    ) -> None:
        self.argv = argv
        """The program and its arguments."""

        self.pid = 0
        """Its process id inside the cell."""

        self.lost = ""
        """The reason that it ended without a result; empty unless it did."""

        self.network: CommandNetwork | None = None
        self.calls: CommandCalls | None = None
        self._send_frame = send_frame
        self._number = number
        self._traits = traits
        self._has_terminal = has_terminal
        self._input_open = has_input
        cap = limits.output_bytes
        self._kept: dict[Stream, KeptOutput] = {
            "stdout": KeptOutput(cap),
            "stderr": KeptOutput(cap),
        }
        self._feed = OutputFeed(partial(give_credit, number))
        if background:
            self._feed.release()
        self._room = WINDOW_BYTES
        self._room_came = anyio.Event()
        self._writing = anyio.Lock()
        self._ended = anyio.Event()
        self._result: ExecutionResult | None = None

    @property
    def running(self) -> bool:
        """True while it has not ended."""
        return not self._ended.is_set()

    async def wait(self) -> ExecutionResult:
        """Wait for the end; return what came of it.

        `status` is `ok` for exit code 0, else `exit`, `timeout`, `out_of_memory`,
        `cpu_limit`, `crashed`, `killed`, or `cancelled` after `kill`. Processes that it
        left in the background go on.

        Raises:
            CellLostError: The cell, or what runs its commands, is gone.
            Exception: The handler of its calls raised it.
        """
        self._feed.release()
        await self._ended.wait()
        if self.calls is not None and self.calls.failure is not None:
            raise self.calls.failure
        if self._result is None:
            raise CellLostError(
                f"the command was lost: {self.lost}", hint="open a new session"
            )
        return self._result

    async def ended(self) -> None:
        """Return when it has ended, or its cell is gone.

        Unlike `wait` it takes no output: a command that nobody reads may wait for ever.
        """
        await self._ended.wait()

    async def output(self) -> AsyncGenerator[tuple[Stream, bytes], None]:
        """Yield recent output, then output as it comes, until the end.

        The first reader gets all of it, unless `wait` was called before or the command
        is one of the background; any other begins with the last 65,536 bytes. A reader
        that does not read holds the command up. Close the iterator to stop reading;
        the command goes on.
        """
        feed = self._feed.read()
        try:
            async for piece in feed:
                yield piece
        finally:
            await feed.aclose()

    async def write(self, data: bytes) -> None:
        """Write to its standard input; wait while it does not read.

        What a command leaves unread is dropped.

        Raises:
            InvalidInputError: It has no open input.
            CellLostError: The cell is gone.
        """
        if not isinstance(data, bytes):
            raise InvalidInputError("input must be bytes", hint="encode the text")
        async with self._writing:
            for start in range(0, len(data), PIECE_BYTES):
                await self._write_piece(data[start : start + PIECE_BYTES])

    async def _write_piece(self, piece: bytes) -> None:
        if not self._input_open:
            raise InvalidInputError(
                "the command has no open input",
                hint='start it with stdin="pipe" or a terminal',
            )
        while self._room < len(piece) and self.running:
            await self._room_came.wait()
        if self.running:
            self._room -= len(piece)
            await self._send("exec_input", piece)

    async def close_stdin(self) -> None:
        """End its standard input; a terminal gets Ctrl-D. Raises CellLostError."""
        async with self._writing:
            if self._input_open and self.running:
                self._input_open = self._has_terminal
                await self._send("exec_eof")

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of its terminal, in characters.

        Raises:
            InvalidInputError: It has no terminal, or the size is not 1 to 1,000.
            CellLostError: The cell is gone.
        """
        if not self._has_terminal:
            raise InvalidInputError(
                "the command has no terminal", hint="start it with pty=(rows, cols)"
            )
        rows, cols = checked_size((rows, cols))
        await self._send("exec_resize", rows=rows, cols=cols)

    async def signal(self, number: int | signal.Signals) -> None:
        """Send it a signal, such as `signal.SIGTERM`.

        Raises:
            InvalidInputError: There is no such signal.
            CellLostError: The cell is gone.
        """
        try:
            known = signal.Signals(number)
        except ValueError:
            raise InvalidInputError(
                f"there is no signal {number}", hint="use one of signal.Signals"
            ) from None
        await self._send("exec_signal", signal=int(known))

    async def kill(self) -> None:
        """Kill it, with all processes of its terminal session; it ends `cancelled`.

        Raises:
            CellLostError: The cell is gone.
        """
        self._feed.release()
        await self._send("exec_kill")

    async def _send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        if self.running:
            await self._send_frame(
                {"type": kind, "id": self._number, **fields}, payload
            )

    def handle_frame(self, header: dict[str, Any], payload: bytes) -> None:
        """Take what the cell says of it.

        Raises:
            KeyError, TypeError, ValueError: It makes no sense.
        """
        kind = header["type"]
        if kind == "exec_output":
            stream: Stream = header["stream"]
            self._kept[stream].add(payload)
            self._feed.add(stream, payload)
        elif kind == "exec_room":
            self._room += whole(header["bytes"], WINDOW_BYTES)
            self._wake_writer()
        elif kind == "exec_call" and self.calls is not None:
            self.calls.take(payload)
        elif kind == "exec_ended":
            self._result = self._build_result(header)

    def end(self) -> None:
        """Mark it as ended, with a result or without, and wake all who wait."""
        if self._ended.is_set():
            return
        if self._result is not None and self.network is not None:
            self._result = self.network.complete(self._result)
        self._ended.set()
        self._feed.end()
        self._wake_writer()

    def _wake_writer(self) -> None:
        self._room_came.set()
        self._room_came = anyio.Event()

    def _build_result(self, header: dict[str, Any]) -> ExecutionResult:
        code, number = exit_of(whole(header["wait_status"], MAX_WAIT_STATUS))
        out, err = self._kept["stdout"], self._kept["stderr"]
        status = status_of_end(header["reason"], code, number)
        killed = whole(header["oom_kills"]) and status != "out_of_memory"
        return ExecutionResult(
            status=status,
            stdout_bytes=out.raw(),
            stderr_bytes=err.raw(),
            stdout=out.text(),
            stderr=err.text(),
            truncated=Truncated(stdout=out.dropped, stderr=err.dropped),
            exit_code=code,
            signal=signal_name(number),
            warnings=(MEMORY_KILL,) if killed else (),
            usage=Usage(
                wall_ms=milliseconds(header["wall_ms"]),
                cpu_ms=milliseconds(header["cpu_ms"]),
                peak_memory_bytes=whole(header["peak_memory_bytes"]),
                enforced_by=dict(self._traits.enforced_by),
            ),
            backend=self._traits.backend,
            isolation=Isolation(level=self._traits.level, layers=self._traits.layers),
        )


def status_of_end(reason: object, code: int | None, number: int | None) -> Status:
    """Return the status of a command that the cell ended, or that ended by itself."""
    for known in COMMAND_ENDS:
        if reason == known:
            return known
    if number is not None:
        return status_of_signal(number)
    return "ok" if code == 0 else "exit"


def checked_size(size: tuple[int, int]) -> tuple[int, int]:
    """Return rows and columns of a terminal. Raises InvalidInputError."""
    rows, cols = size
    if not all(1 <= side <= MAX_TERMINAL_SIDE for side in (rows, cols)):
        raise InvalidInputError(
            f"a terminal has 1 to {MAX_TERMINAL_SIDE} rows and columns",
            hint="use pty=(24, 80)",
        )
    return int(rows), int(cols)


def checked_timeout(seconds: float | None) -> float | None:
    """Return a time limit in seconds. Raises InvalidInputError."""
    if seconds is not None and not (0 < seconds < math.inf):
        raise InvalidInputError(
            "timeout_seconds must be a number of seconds above 0",
            hint="leave it out for no limit but the session's",
        )
    return seconds
