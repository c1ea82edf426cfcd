"""The interfaces of a session's commands and watches, wherever its cell is."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    import signal

    from ..client.types import Stream
    from ..results.result import ExecutionResult
    from .watches import FileChange


class SandboxWatch(Protocol):
    """A watched folder: `FileWatch` on this machine.

    What the methods do, and the errors they raise, is written at `FileWatch`.
    """

    async def changes(self) -> tuple[FileChange, ...]:
        """Look now, and return all changes that were not taken yet."""

    def __aiter__(self) -> Self:
        """Return itself."""

    async def __anext__(self) -> FileChange:
        """Return the next change, and wait for it."""

    async def aclose(self) -> None:
        """End the watch."""

    async def __aenter__(self) -> Self:
        """Return itself."""

    async def __aexit__(self, *_: object) -> None:
        """End the watch."""


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
