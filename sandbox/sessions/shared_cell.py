"""A cell that a session and its forks share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from toolcell.core import (
    CellLostError,
    InvalidInputError,
    SandboxError,
    SandboxUnavailableError,
)

from ..client.cell import Cell
from ..client.questions import INTERRUPT_SECONDS
from ..config.network import Network
from ..processes.files import FileTable
from ..processes.ports import PortTable
from ..processes.process import Process
from ..processes.side_channel import SideChannel
from ..processes.table import ProcessTable
from ..processes.usage import UsageTable
from ..processes.watches import WatchTable

if TYPE_CHECKING:
    from ..client.types import Spawn
    from ..network.egress import Egress

_OPEN_ANOTHER = "open a new session"
# The errors of a program whose cell is taken away, also of one that just starts.
_LOST = (CellLostError, SandboxUnavailableError)
MAIN_BRANCH = "main"
"""The branch of the session itself."""

MAX_BRANCHES = 16
"""Forks and checkpoints of one session that live at once. When it is reached the
next fork is refused."""


def node_branch(branch: str) -> str:
    """Return the name of the node that keeps variables beside a branch's Python."""
    return f"{branch}/node"


class CellTables(NamedTuple):
    """The tables of one side channel: all that goes on beside runs."""

    frames: SideChannel
    commands: ProcessTable
    files: FileTable
    ports: PortTable
    watches: WatchTable
    usage: UsageTable


class SharedCell:
    """The cell that a session shares with its forks; one of them runs at a time.

    `async with shared as cell` waits until no run and no question is under way.
    Commands and connections need no turn: they go on beside each other and beside runs.
    So do files, one operation after the other; what copies the work dir, or ends it,
    waits for both with `whole`.

    Args:
        cell: The cell, which was asked to be kept.
        network: The hosts that its runs may reach.
        on_lost: Called once if the cell turns out to be lost.
    """

    def __init__(
        self, cell: Cell, network: Network, on_lost: Callable[[], None]
    ) -> None:
        self.cell = cell
        self._on_lost = on_lost
        # True once its loss was reported, or its end is on purpose.
        self._ends = False
        self.network = network
        self.egress: Egress | None = None
        self.was_out = False
        # Not a Lock, which belongs to a task: each step of a stream may be another's.
        self.turn = anyio.Semaphore(1, max_value=1, fast_acquire=True)
        self._filing = anyio.Lock(fast_acquire=True)
        self._made = 0
        self.branches = {MAIN_BRANCH}
        self.runs: object = None
        """The session or fork whose program runs; None while none does."""

        self.used = time.monotonic()
        self.over = ""
        self.paused = False
        self._tables: CellTables | None = None

    @property
    def alive(self) -> bool:
        """True if the next run finds it, as far as is known."""
        if self.over:
            return False
        # A busy cell may speak at any time; its loss ends what it is busy with.
        return self.is_busy or self.cell.alive()

    @property
    def _speaks(self) -> bool:
        return self._tables is not None and self._tables.frames.is_busy

    @property
    def processes(self) -> tuple[Process, ...]:
        """The commands that run in the cell."""
        return self._tables.commands.living if self._tables is not None else ()

    @property
    def proxies(self) -> tuple[Egress, ...]:
        """The ways to the network of the run and the commands under way."""
        networks = [process.network for process in self.processes]
        found = [network.egress for network in networks if network is not None]
        return (*found, *(() if self.egress is None else (self.egress,)))

    @property
    def is_busy(self) -> bool:
        """True while a run, a command, a file, a connection or a watch is under way."""
        return self.turn.value == 0 or self._filing.locked() or self._speaks

    @property
    def last_used(self) -> float:
        """The time of the last end of a run, file or command, by `time.monotonic`."""
        if self._tables is None:
            return self.used
        return max(self.used, self._tables.frames.used)

    @asynccontextmanager
    async def tables(self, spawn: Spawn) -> AsyncIterator[CellTables]:
        """Yield what starts commands, connects to ports and watches folders.

        Args:
            spawn: Starts tasks that may live as long as the manager.

        Raises:
            CellLostError: The cell is gone.
            SandboxUnavailableError: The cell did not start.
        """
        if self._tables is None:
            try:
                channel = await self.cell.open_channel()
            except _LOST as error:
                await self._lose(error)
                raise
            # Another task may have waited for the same cell.
            if self._tables is None:
                frames = SideChannel(channel, spawn, self._note_loss)
                self._tables = CellTables(
                    frames,
                    ProcessTable(frames, self.cell.traits, self.cell.memory_kills.note),
                    FileTable(frames, self.cell.traits),
                    PortTable(frames),
                    WatchTable(frames),
                    UsageTable(frames),
                )
        tables = self._tables
        try:
            yield tables
        except CellLostError:
            loss = tables.frames.loss
            if loss is None:
                # The cell lives; what runs its commands is gone.
                raise
            await self._lose(loss)
            raise loss from None

    @asynccontextmanager
    async def files(self, spawn: Spawn) -> AsyncIterator[FileTable]:
        """Yield what moves files, once no other task does; runs may go on.

        Args:
            spawn: As in `tables`.

        Raises:
            CellLostError: The cell is gone.
            InvalidInputError: It is paused.
            SandboxUnavailableError: The cell did not start.
        """
        async with self._filing:
            self.require_open()
            try:
                async with self.tables(spawn) as tables:
                    yield tables.files
            except CellLostError as error:
                await self._lose(error)
                raise
            finally:
                self.used = time.monotonic()

    @asynccontextmanager
    async def whole(self) -> AsyncIterator[Cell]:
        """Yield the cell while neither a run nor a file is under way.

        Raises:
            CellLostError: The cell is gone.
            InvalidInputError: It is paused.
        """
        async with self as cell, self._filing:
            yield cell

    async def __aenter__(self) -> Cell:
        await self.turn.acquire()
        try:
            self.require_open()
        except BaseException:
            self.turn.release()
            raise
        return self.cell

    def require_open(self, *, paused: bool = False) -> None:
        """Raise CellLostError if it was ended, InvalidInputError if it is paused.

        Args:
            paused: True if it may be paused.
        """
        if self.over:
            raise CellLostError(self.over, hint=_OPEN_ANOTHER)
        if self.paused and not paused:
            raise InvalidInputError("the session is paused", hint="call resume() first")

    async def pause(self) -> None:
        """Stop all of its processes but the supervisor, once the run has ended.

        Raises:
            InvalidInputError: They do not stop.
            CellLostError: The cell is gone.
            SandboxUnavailableError: The cell did not start.
        """
        async with self._even_if_paused():
            await self._set_paused(True)

    async def resume(self) -> None:
        """Let its processes go on. Raises CellLostError."""
        async with self._even_if_paused():
            await self._set_paused(False)

    @asynccontextmanager
    async def stopped(self) -> AsyncIterator[Cell]:
        """Yield the cell while no process in it runs. Raises as `pause`."""
        async with self._even_if_paused() as cell:
            runs = not self.paused and cell.traits.level != "process"
            async with self._filing:
                try:
                    if runs:
                        await self._set_paused(True)
                    yield cell
                finally:
                    # A cell that is in the middle of an answer is about to be killed.
                    if runs and cell.settled:
                        with anyio.CancelScope(shield=True):
                            await self._set_paused(False)

    @asynccontextmanager
    async def _even_if_paused(self) -> AsyncIterator[Cell]:
        await self.turn.acquire()
        problem: BaseException | None = None
        try:
            self.require_open(paused=True)
            yield self.cell
        except BaseException as error:
            problem = error
            raise
        finally:
            await self._give_back(problem)

    async def _set_paused(self, paused: bool) -> None:
        if self.paused == paused:
            return

        def note(answer: dict[str, Any]) -> None:
            self.paused = paused and answer.get("held") is True

        await self.cell.ask({"type": "pause" if paused else "resume"}, on_answer=note)
        if paused and not self.paused:
            raise InvalidInputError(
                "the processes of the session wake each other",
                hint="end some of them, or the session",
                details={"reason": "busy"},
            )

    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: object
    ) -> None:
        await self._give_back(error)

    async def _give_back(self, error: BaseException | None) -> None:
        try:
            if isinstance(error, _LOST):
                await self._lose(error)
            elif self.cell.why_ended:
                self._note_reason()
            elif error is not None and not self.cell.settled:
                # A half-done run leaves no usable state.
                self._ends = True
                self.over = self.over or (
                    "the session ended: a call was cancelled and not answered in "
                    f"{INTERRUPT_SECONDS:g} seconds"
                )
                await self.cell.kill()
        finally:
            self.egress = self.runs = None
            self.used = time.monotonic()
            self.turn.release()

    async def _lose(self, error: SandboxError) -> None:
        """Kill a cell that is lost; raise CellLostError if it is known why.

        Whoever finds it gone first asks, so that all callers get one reason.
        """
        if isinstance(error, CellLostError) and not self.over:
            await self.cell.ran_out_of_memory()
            self._note_reason()
        if known := self.over:
            await self.cell.kill()
            raise CellLostError(known, hint=_OPEN_ANOTHER) from None
        if isinstance(error, CellLostError):
            self._note_loss()
        self.over = error.message
        await self.cell.kill()

    def _note_reason(self) -> None:
        if self.cell.why_ended and not self.over:
            self._note_loss()
            self.over = f"the session ended: {self.cell.why_ended}"

    def close(self) -> None:
        """Take note that the session is over: its cell then ends on purpose."""
        self._ends = True

    def _note_loss(self) -> None:
        if not self._ends and not self.over:
            self._ends = True
            self._on_lost()

    async def fork_branch(
        self, branch: str, *, allow_threads: bool = False
    ) -> tuple[str, tuple[str, ...]]:
        """Copy a branch; the caller has the turn.

        Args:
            branch: The branch to copy.
            allow_threads: Copy it even though threads of the program live.

        Returns:
            The new branch, and the files and threads that it shares or has lost.

        Raises:
            InvalidInputError: There is no state to copy, threads live, there are too
                many branches, or the disk has no room.
            CellLostError: The cell went away.
        """
        name = self._unused_name()
        request = {"branch": branch, "to": name, "allow_threads": allow_threads}

        def note(answer: dict[str, Any]) -> None:
            if "error" not in answer:
                self.branches.add(name)

        try:
            answer, _ = await self.cell.ask({"type": "fork", **request}, on_answer=note)
        except anyio.get_cancelled_exc_class():
            # Nobody will know its name.
            with anyio.CancelScope(shield=True), contextlib.suppress(CellLostError):
                await self.drop_branch(name)
            raise
        if "error" in answer:
            raise InvalidInputError(
                f"cannot fork: {str(answer['error'])[:1000]}",
                hint="run a program in it first, let its threads end, and leave room "
                "for a copy of its files",
            )
        return name, tuple(str(warning) for warning in answer.get("warnings", ()))

    def add_branch(self) -> str:
        """Make a branch without state; the caller has the turn.

        Raises:
            InvalidInputError: There are too many branches.
        """
        name = self._unused_name()
        self.branches.add(name)
        return name

    def _unused_name(self) -> str:
        if len(self.branches) > MAX_BRANCHES:
            raise InvalidInputError(
                f"{MAX_BRANCHES} forks and checkpoints live already", hint="close one"
            )
        self._made += 1
        return f"{MAIN_BRANCH}-{self._made}"

    async def drop_branch(self, branch: str) -> None:
        """End a branch, if it lives; the caller has the turn. Raises CellLostError."""
        if branch in self.branches:
            # First: a frame whose sender is cancelled is sent all the same.
            self.branches.remove(branch)
            for name in (branch, node_branch(branch)):
                await self.cell.send_frame({"type": "drop", "branch": name})

    async def end_when_idle(self, idle: float, lifetime: float) -> None:
        """End the cell after `idle` seconds without a run, or `lifetime` in all."""
        born = self.used
        while True:
            until = min(self.last_used + idle, born + lifetime)
            left = until - time.monotonic()
            if left > 0:
                await anyio.sleep(left)
                continue
            if (self.is_busy or self.paused) and until < born + lifetime:
                await anyio.sleep(idle)
                continue
            why = "idle" if until < born + lifetime else "open"
            seconds = idle if why == "idle" else lifetime
            self.over = f"the session was {why} for {seconds:g} seconds and was ended"
            await self.cell.kill()
            return
