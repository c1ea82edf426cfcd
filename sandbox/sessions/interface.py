"""The shape of a sandbox and of its sessions, wherever their cells are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    import signal
    from os import PathLike
    from pathlib import Path

    from anyio.abc import ByteStream
    from pydantic import SecretStr

    from ..client.host_calls import HostCalls
    from ..client.types import Freshness, Language, OnDisplay, OnOutput, Stream
    from ..client.workdir import FileInfo
    from ..config.settings import Limits, Network, SandboxConfig
    from ..network.types import OnConnection
    from ..packages.distributions import OnStep
    from ..processes.usage import CellUsage
    from ..processes.watches import FileChange
    from ..results.events import Event
    from ..results.result import ExecutionResult
    from ..runs.batch import BatchResults, OnProgress, Programs
    from ..scheduling.pool import PoolStats


@runtime_checkable
class Sandbox(Protocol):
    """A place to run programs and sessions: `SandboxManager` on this machine.

    Code that is typed by it works with any other as well. The
    behaviour of the methods, with their errors, stands at `SandboxManager`.
    """

    @property
    def config(self) -> SandboxConfig:
        """The limits and rules of its runs."""

    @property
    def active_cells(self) -> int:
        """The number of cells that runs and sessions use now."""

    @property
    def notices(self) -> tuple[str, ...]:
        """Facts that users of its cells should know, such as a weaker backend."""

    async def run(
        self,
        code: str,
        *,
        language: Language = "python",
        inputs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        files: Mapping[str, bytes | str] | None = None,
        argv: Sequence[str] = (),
        stdin: bytes | None = None,
        merge_stderr: bool = False,
        secrets: Mapping[str, SecretStr] | None = None,
        packages: Sequence[str] = (),
        agent_id: str | None = None,
        calls: HostCalls | None = None,
        network: Network | None = None,
        on_output: OnOutput | None = None,
        on_display: OnDisplay | None = None,
        on_connection: OnConnection | None = None,
        minimum_freshness: Freshness = "program",
    ) -> ExecutionResult:
        """Run a program in a cell of its own, or in one that was made new for it."""

    def stream(
        self,
        code: str,
        *,
        language: Language = "python",
        inputs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        files: Mapping[str, bytes | str] | None = None,
        secrets: Mapping[str, SecretStr] | None = None,
        packages: Sequence[str] = (),
        agent_id: str | None = None,
        network: Network | None = None,
        minimum_freshness: Freshness = "program",
    ) -> AsyncGenerator[Event, None]:
        """Run a program as `run` does, and yield its events as they happen."""

    async def call(
        self, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Call a Python function in a cell and return its value."""

    def session(
        self,
        *,
        packages: Sequence[str] = (),
        agent_id: str | None = None,
        network: Network | None = None,
    ) -> AbstractAsyncContextManager[SandboxSession]:
        """Open a cell for several runs of one agent; closing destroys it."""

    def map(
        self,
        programs: Programs,
        *,
        concurrency: int | None = None,
        limits: Limits | None = None,
        ordered: bool = True,
        on_progress: OnProgress | None = None,
        agent_id: str | None = None,
    ) -> BatchResults:
        """Run many programs, each as `run` does; iterate over their results."""

    async def install(
        self, packages: Sequence[str] = (), *, on_step: OnStep | None = None
    ) -> str:
        """Install packages before a run asks for them."""

    def pool_stats(self) -> PoolStats:
        """Return the state of the pool of prepared cells."""

    async def check(self) -> None:
        """Ask whether cells can be made, without making one."""


@runtime_checkable
class SandboxSession(Protocol):
    """A cell that several runs of one agent share: `Session` on this machine.

    What the methods do, and the errors they raise, is written at `Session`.
    """

    @property
    def agent_id(self) -> str | None:
        """The agent whose session it is."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Files and threads that a fork shares with its origin, or has lost."""

    @property
    def limits(self) -> Limits:
        """The limits of its runs."""

    @property
    def network(self) -> Network:
        """The hosts that its runs may reach now."""

    @property
    def alive(self) -> bool:
        """True if the next run finds its cell, as far as is known while it is busy."""

    async def run(
        self,
        code: str,
        *,
        fresh: bool = False,
        language: Language = "python",
        inputs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        secrets: Mapping[str, SecretStr] | None = None,
        calls: HostCalls | None = None,
        on_output: OnOutput | None = None,
        on_display: OnDisplay | None = None,
        on_connection: OnConnection | None = None,
    ) -> ExecutionResult:
        """Run a program where the last one left off."""

    def stream(
        self,
        code: str,
        *,
        fresh: bool = False,
        language: Language = "python",
        inputs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        secrets: Mapping[str, SecretStr] | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Run a program as `run` does, and yield its events as they happen."""

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes | Literal["pipe"] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        timeout_seconds: float | None = None,
        pty: tuple[int, int] | None = None,
        background: bool = False,
    ) -> SandboxProcess:
        """Start a command in the session's cell; return it as soon as it runs."""

    def processes(self) -> tuple[SandboxProcess, ...]:
        """Return the commands that run in the session's cell, those of forks too."""

    async def connect(self, port: int) -> ByteStream:
        """Connect to a server inside the session's cell, on its loopback interface."""

    async def watch(
        self, path: str | PathLike[str] = "", *, recursive: bool = False
    ) -> SandboxWatch:
        """Watch a folder of the session's cell."""

    async def pause(self) -> None:
        """Stop all processes of this session and its forks where they are."""

    async def resume(self) -> None:
        """Let the processes go on."""

    @property
    def paused(self) -> bool:
        """True from `pause` to `resume`."""

    async def save(
        self, target: str | Path, *, max_bytes: int = ...
    ) -> tuple[str, ...]:
        """Write the work dir into an archive of this machine; return what is left."""

    async def load(self, source: str | Path, *, max_bytes: int = ...) -> int:
        """Unpack an archive of `save` into the work dir; return how many entries."""

    async def install(
        self, packages: Sequence[str], *, on_step: OnStep | None = None
    ) -> None:
        """Let programs import more packages, from the next run on."""

    async def set_network(self, network: Network) -> None:
        """Change the hosts that this session and its forks may reach."""

    async def interrupt(self) -> None:
        """Interrupt the run of this session, if there is one, as Ctrl-C does."""

    async def fork(self, *, allow_threads: bool = False) -> Self:
        """Return a second session with the same variables and its own work dir."""

    async def context(self) -> SandboxSession:
        """Return a second session without variables, in the same work dir."""

    async def usage(self) -> CellUsage:
        """Return what the session's cell uses now."""

    async def checkpoint(self) -> str:
        """Save the current variables and files; return the id for `rollback`."""

    async def rollback(self, checkpoint: str) -> None:
        """Return to a checkpoint; it stays, and can be used again."""

    async def drop(self, checkpoint: str) -> None:
        """Forget a checkpoint."""

    async def aclose(self) -> None:
        """End a fork; the session that it came from goes on."""

    async def write_file(self, path: str | PathLike[str], data: bytes | str) -> None:
        """Write a file of the work dir, with its folders."""

    async def read_file(self, path: str | PathLike[str], max_bytes: int = ...) -> bytes:
        """Return the bytes of a file of the work dir."""

    async def list_files(self, path: str = "") -> tuple[FileInfo, ...]:
        """Return what is below a folder of the work dir."""

    async def remove(self, path: str | PathLike[str]) -> None:
        """Remove a file or a folder of the work dir."""

    async def upload(self, source: str | Path, path: str = "") -> int:
        """Write a folder's files into the work dir; return how many."""

    async def download(
        self,
        target: str | Path,
        path: str = "",
        *,
        max_bytes: int = ...,
    ) -> int:
        """Write the work dir's files into a new folder; return how many."""


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
