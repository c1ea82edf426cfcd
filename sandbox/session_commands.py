"""Commands of a session: any program, beside the session's own interpreter."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

from toolcell.core import CellLostError, InvalidInputError

from .processes.process import Process
from .processes.table import Command, argv_of
from .program_factory import ProgramFactory
from .shared_cell import SharedCell


class SessionCommands:
    """The part of a session that runs commands."""

    _programs: ProgramFactory
    _shared: SharedCell

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
        once. They have no network. What they leave in the background lives on, on
        gVisor until the next run ends; all of it ends with the session.

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
        shared = self._shared
        if shared.over:
            raise CellLostError(shared.over, hint="open a new session")
        if shared.cell.traits.level == "process":
            raise InvalidInputError(
                "'process' isolation runs no commands", hint="use a stronger backend"
            )
        table = await shared.commands(self._programs.spawn)
        return await table.start(wanted, self._programs.config.limits, self._own_branch)

    def processes(self) -> tuple[Process, ...]:
        """Return the commands that run in the session's cell, those of forks too."""
        return self._shared.processes
