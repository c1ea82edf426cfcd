"""The interfaces of a session's commands and watches, wherever its cell is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Literal, Protocol, Self

import anyio
from anyio.lowlevel import checkpoint
from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    import signal

    from toolcell.core import ToolcellError

    from ..client.types import Stream
    from ..results.result import ExecutionResult


class FileChange(BaseModel):
    """One thing that happened below a watched folder."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: Literal["created", "written", "removed", "renamed", "chmod"]
    """A new file that holds bytes already is `created`, then `written`. The contents of
    a folder that is `renamed` are not named again."""

    path: str
    """Its path below the watched folder; the old one if it was renamed."""

    new_path: str = ""
    """The path of what was renamed; else empty."""

    entry: Literal["file", "folder", "link", "other"]
    """The kind of the file."""


class SandboxWatch(ABC):
    """A watched folder of a session's cell: `FileWatch` on this machine.

    `async for change in watch` waits for changes; `changes()` looks now. The cell looks
    only while somebody waits, at most ten times a second and for a tenth of the time.
    So changes between two looks are reported as one, and what was made and removed
    between them is not. It ends with its session; close it to end it before.
    """

    def __init__(self) -> None:
        self._came: deque[FileChange] = deque()
        self._asked = 0
        self._answered = 0
        self._has_more = False
        self._is_closed = False
        self._failure: ToolcellError | None = None
        self._reading = anyio.ResourceGuard("watching")

    async def changes(self) -> tuple[FileChange, ...]:
        """Look now, and return all changes that were not taken yet; none is empty.

        In a pause of the session it waits until `resume`.

        Raises:
            InvalidInputError: The folder holds more than 10,000 entries, or paths of
                more than 2 MiB: `details["reason"]` is `too_many`. The watch has ended.
            CellLostError: The cell is gone.
            anyio.ClosedResourceError: It was closed.
            anyio.BusyResourceError: Another task waits for changes.
        """
        with self._reading:
            await self._ask(at_once=True)
            while self._has_more:
                await self._ask(at_once=False)
            found = tuple(self._came)
            self._came.clear()
            return found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FileChange:
        """Return the next change, and wait for it. Raises as `changes`."""
        if self._is_closed:
            raise StopAsyncIteration
        await checkpoint()
        with self._reading:
            while not self._came:
                await self._ask(at_once=False)
            return self._came.popleft()

    async def _ask(self, *, at_once: bool) -> None:
        """Wait for an answer; an earlier question may still have none."""
        self._require_open()
        if at_once or self._answered == self._asked:
            self._asked += 1
            await self._send_question(self._asked, at_once=at_once)
        await self._wait_for_answer()

    @abstractmethod
    async def _send_question(self, number: int, *, at_once: bool) -> None:
        """Ask for changes: those of now, or the next ones."""

    @abstractmethod
    async def _wait_for_answer(self) -> None:
        """Return when the last question is answered. Raises as `changes`."""

    def _require_open(self) -> None:
        if self._is_closed:
            raise anyio.ClosedResourceError
        if self._failure is not None:
            raise self._failure

    async def aclose(self) -> None:
        """End the watch; who waits for changes gets `anyio.ClosedResourceError`."""
        if not self._is_closed:
            self._is_closed = True
            with anyio.CancelScope(shield=True):
                await self._end()
        await checkpoint()

    @abstractmethod
    async def _end(self) -> None:
        """Wake who waits, and let go of what the watch uses; called once."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class SandboxProcess(Protocol):
    """A command of a session: `Process` on this machine.

    What the methods do, and the errors they raise, is written at `Process`.
    """

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments."""

    @property
    def pid(self) -> int:
        """Its process id inside the cell."""

    @property
    def running(self) -> bool:
        """True while it has not ended."""

    async def wait(self) -> ExecutionResult:
        """Wait for the end; return what came of it."""

    async def ended(self) -> None:
        """Return when it has ended; unlike `wait`, take nothing of its output."""

    def output(self) -> AsyncGenerator[tuple[Stream, bytes], None]:
        """Yield recent output, then output as it comes, until the end."""

    async def write(self, data: bytes) -> None:
        """Write to its standard input; wait while it does not read."""

    async def close_stdin(self) -> None:
        """End its standard input; a terminal gets Ctrl-D."""

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of its terminal, in characters."""

    async def signal(self, number: int | signal.Signals) -> None:
        """Send it a signal, such as `signal.SIGTERM`."""

    async def kill(self) -> None:
        """Kill it, with all processes of its terminal session; it ends `cancelled`."""
