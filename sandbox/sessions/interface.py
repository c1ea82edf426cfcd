"""The interface of a session and its parts, wherever its cell is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal

from ..client.download import MAX_DOWNLOAD_BYTES
from ..client.workdir import MAX_READ_BYTES
from ..programs.program import RunRequest
from .archives import MAX_SAVED_BYTES

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path

    from anyio.abc import ByteStream
    from pydantic import SecretStr

    from ..client.host_calls import HostCalls
    from ..client.types import Language, OnDisplay, OnOutput
    from ..client.workdir import FileInfo
    from ..config.network import Network
    from ..config.settings import Limits
    from ..network.gate import RequestGate
    from ..network.types import OnConnection
    from ..packages.distributions import OnStep
    from ..processes.interface import SandboxProcess, SandboxWatch
    from ..processes.usage import CellUsage
    from ..results.events import Event
    from ..results.result import ExecutionResult


class SandboxSession(ABC):
    """A cell that several runs of one agent share: `Session` on this machine.

    Variables, imports, the current folder and files stay from run to run, until the
    session is closed. No other session sees them. Any number of tasks may use it; its
    runs, and those of its forks, follow each other. A cell that is lost is not
    replaced: every later call raises CellLostError. A cell that did not start, or whose
    isolation does not hold, is a SandboxUnavailableError.

    Paths of files are relative to the work dir, or absolute inside the cell, which sees
    its own root; in `process` isolation it does not, and absolute paths are refused.
    The program's user must have the right to what is asked for.
    """

    agent_id: str | None
    """The agent whose session it is."""

    warnings: tuple[str, ...]
    """Files and threads that a fork shares with its origin, or has lost."""

    @property
    @abstractmethod
    def limits(self) -> Limits:
        """The limits of its runs."""

    @property
    @abstractmethod
    def network(self) -> Network:
        """The hosts that its runs may reach now."""

    @property
    @abstractmethod
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
        gate: RequestGate | None = None,
    ) -> ExecutionResult:
        """Run a program where the last one left off.

        Runs of one session follow each other. A run that passes its deadline is
        interrupted as by Ctrl-C; if it obeys within half a second its variables
        are kept, else they are lost: `result.state` says which. A run may narrow
        the limits on time, output and code; those on memory, processes, CPUs, open
        files and disk are the cell's: others are refused. Processes detached from the
        program end with the run; `node` has its own variables, `bash` files only.

        Arguments that are not named here are as in `Sandbox.run`.

        Args:
            code: The program's text.
            fresh: True takes a new interpreter, and leaves the variables alone.
            limits: Narrower limits for this run; None takes the manager's.
            secrets: Environment variables of this run alone; gone after it.

        Raises:
            InvalidInputError: The arguments cannot be used, or it is a closed fork.
        """
        return await self._run(
            RunRequest(
                code=code,
                fresh=fresh,
                language=language,
                inputs=inputs,
                limits=limits,
                secrets=secrets,
                calls=calls,
                on_output=on_output,
                on_display=on_display,
                on_connection=on_connection,
                gate=gate,
            )
        )

    async def stream(
        self,
        code: str,
        *,
        fresh: bool = False,
        language: Language = "python",
        inputs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        secrets: Mapping[str, SecretStr] | None = None,
        gate: RequestGate | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Run a program as `run` does, and yield its events as they happen.

        Arguments and errors are those of `run`; see `Sandbox.stream`.
        """
        request = RunRequest(
            code=code,
            fresh=fresh,
            language=language,
            inputs=inputs,
            limits=limits,
            secrets=secrets,
            gate=gate,
            streamed=True,
        )
        async with aclosing(self._stream(request)) as events:
            async for event in events:
                yield event

    @abstractmethod
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
        calls: HostCalls | None = None,
        gate: RequestGate | None = None,
    ) -> SandboxProcess:
        """Start a command in the session's cell; return it as soon as it runs.

        Commands run beside each other and beside the session's own runs, as the same
        confined user, in the same files and within the same limits of the cell; 64 at
        once. Each has the session's network from its start to its end, with limits on
        connections and bytes of its own, and the session's packages. What they leave in
        the background lives on without network and calls, on gVisor until the next run
        ends; all of it ends with the session.

        Args:
            command: The program and its arguments; a text is a script of bash. Texts
                and variables have at most 1,572,864 bytes together.
            stdin: Bytes to read; "pipe" lets `Process.write` give them; None is
                nothing, or the terminal.
            env: Environment variables beside those that every program finds.
            cwd: The folder to start in, of the work dir or absolute.
            timeout_seconds: Seconds from the start. When it is reached the command and
                its terminal session are killed: `timeout`. None: the session's limit.
            pty: Rows and columns of a pseudo-terminal to run in; None: pipes.
            background: True if it never waits for a reader of its output, who gets the
                latest 65,536 bytes. False: past 524,288 it waits for one or `wait`.
            calls: What the program `tools` may call in it, until it ends.
            gate: As in `Sandbox.run`; `timeout_seconds` stands still meanwhile.

        Raises:
            InvalidInputError: It cannot be started: no such program or folder, too
                many commands, or isolation is `process`, which has no commands.
                `details["reason"]` is `missing`, `denied` or another word for why.
            PackageError: The session's packages cannot be installed.
        """

    @abstractmethod
    def processes(self) -> tuple[SandboxProcess, ...]:
        """Return the commands that run in the session's cell, those of forks too."""

    @abstractmethod
    async def connect(self, port: int) -> ByteStream:
        """Connect to a server inside the session's cell, on its loopback interface.

        The bytes pass over the cell's own channel: nothing listens outside of the cell,
        and the cell cannot open a connection this way. Servers are found at 127.0.0.1,
        else at ::1; 128 connections go on beside runs, until the session ends.

        Close the stream, or use it in `async with`.

        Args:
            port: The port, 1 to 65535.

        Raises:
            InvalidInputError: It cannot be connected to; `details["reason"]` is
                `missing` where nothing listens, `too_many`, `busy` after 10 seconds
                without an answer, or `failed`. Or isolation is `process`, which has
                no network of its own.
        """

    @abstractmethod
    async def watch(
        self, path: str | PathLike[str] = "", *, recursive: bool = False
    ) -> SandboxWatch:
        """Watch a folder of the session's cell; 16 at once.

        The cell looks at it as the program's user, again and again, while somebody
        waits for changes (see `SandboxWatch`). That goes on beside runs and commands.

        Args:
            path: The folder, below the work dir or absolute; empty for the work dir.
            recursive: True if all that is below it counts, 64 folders deep; False if
                its own entries alone do.

        Returns:
            The watch, once the folder was looked at. Close it, or use `async with`.

        Raises:
            InvalidInputError: It cannot be watched; `details["reason"]` is `missing`,
                `not_folder`, `denied`, `link`, or `too_many` where it holds more than
                10,000 entries or paths of more than 2 MiB, or 16 are watched. Or
                isolation is `process`, which has no watches.
        """

    @abstractmethod
    async def pause(self) -> None:
        """Stop all processes of the session and its forks until `resume`.

        A run under way ends first; commands and servers stop where they are. They use
        no CPU time then, and keep their memory. Until `resume` runs, commands, files
        and new connections are refused; what is written to commands and open
        connections waits. Time limits of commands and `session_idle_seconds` stand
        still, `session_lifetime_seconds` goes on. Twice is harmless.

        Raises:
            InvalidInputError: Isolation is `process`, which has nothing to pause; or
                processes woke each other for 2 seconds, and all of them go on:
                `details["reason"]` is `busy`.
        """

    @abstractmethod
    async def resume(self) -> None:
        """Let the processes go on. Without a pause it does nothing."""

    @property
    @abstractmethod
    def paused(self) -> bool:
        """True from `pause` to `resume`."""

    @abstractmethod
    async def save(
        self, target: str | Path, *, max_bytes: int = MAX_SAVED_BYTES
    ) -> tuple[str, ...]:
        """Write the work dir into an archive, a tar file of this machine.

        It is kept: the bytes of regular files, their executable bit, folders, and links
        that stay inside. It is not kept: variables and processes, what lies outside of
        the work dir, times and other bits of modes, and what `list_files` leaves
        out. No process runs meanwhile. If it fails nothing of it stays.

        Args:
            target: The archive; there must be nothing. Only this user can read it.
            max_bytes: Bytes of all files together, by default 1 GiB. When it is
                exceeded the call fails.

        Returns:
            What was left out: links that lead out, sockets, pipes.

        Raises:
            InvalidInputError: There are more than 10,000 entries, a file has more than
                256 MiB, all have more than `max_bytes`, or `target` cannot be written.
        """

    @abstractmethod
    async def load(
        self, source: str | Path, *, max_bytes: int = MAX_SAVED_BYTES
    ) -> int:
        """Unpack an archive of `save` into the work dir; return how many entries.

        The archive may come from anybody: it is checked as a whole first, and written
        as the program's user. Files that are there are replaced. Nothing is unpacked
        from an archive with a name or a link that leads out, a hard link, a device, a
        sparse file, an entry twice, or compression.

        Args:
            source: The archive.
            max_bytes: As in `save`.

        Raises:
            InvalidInputError: It is no such archive, or larger than `save` writes.
        """

    @abstractmethod
    async def install(
        self, packages: Sequence[str], *, on_step: OnStep | None = None
    ) -> None:
        """Let programs import more packages, from the next run on.

        Modules that they have imported already stay as they are.

        Args:
            packages: As in `Sandbox.run`; they must go with earlier ones.
            on_step: Called with each line that the installer prints.

        Raises:
            InvalidInputError: A package is not written as one.
            PackageError: A package is refused, missing or unfit.
            SandboxUnavailableError: uv is not installed, or there is no cell.
        """

    @abstractmethod
    async def set_network(self, network: Network) -> None:
        """Change the hosts that this session and its forks may reach.

        They may exceed those of the configuration. The change holds at once for new
        connections of a run that goes on, and when this returns, open connections to
        hosts that are no longer allowed are closed. A run or a command that began
        without network has none until it ends.

        Args:
            network: `Network.none`, or `Network.allow([...])`.

        Raises:
            InvalidInputError: It is no Network.
            SandboxUnavailableError: `process` isolation has no network.
        """

    @abstractmethod
    async def interrupt(self) -> None:
        """Interrupt the run of this session, if there is one, as Ctrl-C does.

        The run ends as `cancelled`; its `result.state` is `kept` or `lost`.
        """

    @abstractmethod
    async def fork(self, *, allow_threads: bool = False) -> SandboxSession:
        """Return a second session with the same variables and its own work dir.

        Both have the same memory until one of them writes. Relative paths lead to
        the copy; absolute paths, and files that were open, are shared, and listed
        in the fork's `warnings`. Forks share one cell and its limits; they run one
        at a time and end with the session that they came from.

        Args:
            allow_threads: Fork even though threads of the program live; the fork
                does not have them.

        Raises:
            InvalidInputError: There is no state to fork, threads live, the disk has
                no room for the copy, or there are 16 forks and checkpoints already.
        """

    @abstractmethod
    async def context(self) -> SandboxSession:
        """Return a second session without variables, in the same work dir.

        It has its own interpreter, counts as a fork, and ends with this or by `aclose`.

        Raises:
            InvalidInputError: There are 16 forks and checkpoints already.
        """

    @abstractmethod
    async def usage(self) -> CellUsage:
        """Return what the session's cell uses now; runs and commands go on meanwhile.

        Raises:
            InvalidInputError: Isolation is `process`, which measures single runs alone.
        """

    @abstractmethod
    async def checkpoint(self) -> str:
        """Save variables and files; return the id for `rollback`. Raises as `fork`."""

    @abstractmethod
    async def rollback(self, checkpoint: str) -> None:
        """Return to a checkpoint; it stays, and can be used again.

        Raises:
            InvalidInputError: There is no such checkpoint.
        """

    @abstractmethod
    async def drop(self, checkpoint: str) -> None:
        """Forget a checkpoint."""

    @abstractmethod
    async def aclose(self) -> None:
        """End a fork; the session that it came from goes on."""

    @abstractmethod
    async def write_file(self, path: str | PathLike[str], data: bytes | str) -> None:
        """Write a file, its folders included; one that is there is replaced.

        Args:
            data: Its bytes, or a text for UTF-8.

        Raises:
            InvalidInputError: The path is no file inside, or the disk is full.
        """

    @abstractmethod
    async def read_file(
        self, path: str | PathLike[str], max_bytes: int = MAX_READ_BYTES
    ) -> bytes:
        """Return a file's bytes; links are not followed.

        Args:
            max_bytes: The largest size that it may have, by default 256 MiB. When it is
                exceeded the call fails.

        Raises:
            InvalidInputError: There is no such file, or it is larger.
        """

    @abstractmethod
    async def list_files(self, path: str = "") -> tuple[FileInfo, ...]:
        """Return what is below a folder, 10,000 entries at most.

        Entries that no path can name are left out: names that are not UTF-8, and paths
        below 64 folders or of more than 4,096 bytes.

        Args:
            path: The folder; empty for the work dir.

        Raises:
            InvalidInputError: There is no such folder, or it holds more.
        """

    @abstractmethod
    async def remove(self, path: str | PathLike[str]) -> None:
        """Remove a file, a link, or a folder with all that is in it.

        Raises:
            InvalidInputError: There is no such thing, or it takes 30 seconds.
        """

    @abstractmethod
    async def upload(self, source: str | Path, path: str = "") -> int:
        """Write the regular files of a folder of this machine; return how many.

        Empty folders are made, too. A file that its owner may execute has mode 0755
        in the cell, any other 0644.

        Args:
            source: The folder here.
            path: The folder there; empty for the work dir.

        Raises:
            InvalidInputError: It is no folder, over 10,000 entries, or unreadable.
        """

    @abstractmethod
    async def download(
        self, target: str | Path, path: str = "", *, max_bytes: int = MAX_DOWNLOAD_BYTES
    ) -> int:
        """Write regular files of the cell into a new folder here; return how many.

        Its folders are made, too. All is its owner's alone: folders and files that
        were executable have mode 0700, other files 0600. Names come from the
        program: one that would lead out of `target` is refused, and nothing that
        exists is followed or replaced. Holes in files stay holes, and hard links stay
        hard links. If it fails nothing of it stays.

        Args:
            target: The new folder here.
            path: The folder there; empty for the work dir.
            max_bytes: As in `save`.

        Raises:
            InvalidInputError: `target` exists, a name cannot be used, a file has more
                than 256 MiB, or all have more than `max_bytes`.
        """

    @abstractmethod
    async def _run(self, request: RunRequest) -> ExecutionResult:
        """Run a program; see `run`."""

    @abstractmethod
    def _stream(self, request: RunRequest) -> AsyncGenerator[Event, None]:
        """Run a program and yield its events; see `stream`."""
