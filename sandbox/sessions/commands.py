"""Commands, ports and watches of a session, beside its own interpreter."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Literal

from toolcell.core import InvalidInputError

from ..client.workdir import checked_path
from ..processes.ports import PortStream
from ..processes.process import Process
from ..processes.table import Command, argv_of
from ..processes.usage import CellUsage
from ..processes.watches import FileWatch
from ..runs.program_factory import ProgramFactory
from .shared_cell import SharedCell


class SessionCommands:
    """The part of a session that runs commands, connects to servers, watches files."""

    _programs: ProgramFactory
    _shared: SharedCell
    _packages: tuple[str, ...]
    agent_id: str | None

    @property
    @abstractmethod
    def _own_branch(self) -> str: ...

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
    ) -> Process:
        """Start a command in the session's cell; return it as soon as it runs.

        Commands run beside each other and beside the session's own runs, as the same
        confined user, in the same files and within the same limits of the cell; 64 at
        once. Each has the session's network from its start to its end, with limits on
        connections and bytes of its own, and finds the session's packages. What they
        leave in the background lives on without network, on gVisor until the next run
        ends; all of it ends with the session.

        Args:
            command: The program and its arguments; a text is a script of bash. Texts
                and variables have at most 1,572,864 bytes together.
            stdin: Bytes to read; "pipe" lets `Process.write` give them; None is
                nothing, or the terminal.
            env: Environment variables beside those that every program finds.
            cwd: The folder to start in, below the session's work dir or absolute.
            timeout_seconds: Seconds from the start. When it is reached the command and
                its terminal session are killed and its status is `timeout`. None: no
                limit but the session's.
            pty: Rows and columns of a pseudo-terminal to run in; None: pipes.
            background: True if it never waits for somebody to read its output or to
                call `wait`; the latest 65,536 bytes are there for a reader. False: with
                524,288 bytes unread it waits for one of the two.

        Raises:
            InvalidInputError: It cannot be started: no such program or folder, too
                many commands, or isolation is `process`, which has no commands.
                `details["reason"]` is `missing`, `denied` or another word for why.
            PackageError: The session's packages cannot be installed.
            CellLostError: The cell is gone.
            SandboxUnavailableError: The cell did not start.
        """
        wanted = Command(
            argv=argv_of(command),
            env=dict(env or {}),
            cwd=cwd,
            stdin=stdin,
            timeout_seconds=timeout_seconds,
            pty=pty,
            background=background,
        )
        self._require_cell("runs no commands")
        wanted = replace(wanted, packages=await self._programs.layer(self._packages))
        table = (await self._shared.beside(self._programs.spawn)).commands
        limits, egress = self._programs.config.limits, None
        if self._shared.network.mode != "none":
            egress = self._programs.egress(
                self._shared.network, limits, None, self.agent_id
            )
        return await table.start(wanted, limits, self._own_branch, egress)

    async def connect(self, port: int) -> PortStream:
        """Connect to a server inside the session's cell, on its loopback interface.

        The bytes pass over the cell's own channel: nothing listens outside of the cell,
        and the cell cannot open a connection this way. Servers are found at 127.0.0.1,
        else at ::1. Connections go on beside runs and commands, 128 at once, and end
        with the session.

        Args:
            port: The port, 1 to 65535.

        Returns:
            A stream of anyio (`ByteStream`); close it, or use it in `async with`.

        Raises:
            InvalidInputError: It cannot be connected to; `details["reason"]` is
                `missing` where nothing listens, `too_many`, `busy` after 10 seconds
                without an answer, or `failed`. Or isolation is `process`, which has
                no network of its own.
            CellLostError: The cell is gone.
            SandboxUnavailableError: The cell did not start.
        """
        self._require_cell("has no ports of its own")
        beside = await self._shared.beside(self._programs.spawn)
        return await beside.ports.connect(port)

    async def watch(
        self, path: str | PathLike[str] = "", *, recursive: bool = False
    ) -> FileWatch:
        """Watch a folder of the session's cell; 16 at once.

        The cell looks at it as the program's user, again and again, while somebody
        waits for changes (see `FileWatch`). That goes on beside runs and commands.

        Args:
            path: The folder, below the work dir or absolute; empty for the work dir.
            recursive: True if all that is below it counts, 64 folders deep; False if
                its own entries alone do.

        Returns:
            The watch, once the folder was looked at: later changes are told. Close it,
            or use it in `async with`.

        Raises:
            InvalidInputError: It cannot be watched; `details["reason"]` is `missing`,
                `not_folder`, `denied`, `link`, or `too_many` where it holds more than
                10,000 entries or paths of more than 2 MiB, or 16 are watched. Or
                isolation is `process`, which has no watches.
            CellLostError: The cell is gone.
            SandboxUnavailableError: The cell did not start.
        """
        self._require_cell("has no watches")
        name = checked_path(path, absolute=True) if path else ""
        beside = await self._shared.beside(self._programs.spawn)
        return await beside.watches.open(name, self._own_branch, recursive=recursive)

    async def usage(self) -> CellUsage:
        """Return what the session's cell uses now; runs and commands go on meanwhile.

        Raises:
            InvalidInputError: Isolation is `process`, which measures single runs alone.
            CellLostError: The cell is gone.
            SandboxUnavailableError: The cell did not start.
        """
        self._require_cell("measures no sessions", paused=True)
        beside = await self._shared.beside(self._programs.spawn)
        return await beside.usage.ask()

    def _require_cell(self, lack: str, *, paused: bool = False) -> None:
        """Raise what keeps this session from work beside its runs.

        Args:
            lack: The words for what `process` isolation lacks.
            paused: True if a pause is in the way of nothing.
        """
        shared = self._shared
        shared.require_open(paused=paused)
        if shared.cell.traits.level == "process":
            raise InvalidInputError(
                f"'process' isolation {lack}", hint="use a stronger backend"
            )

    def processes(self) -> tuple[Process, ...]:
        """Return the commands that run in the session's cell, those of forks too."""
        return self._shared.processes
