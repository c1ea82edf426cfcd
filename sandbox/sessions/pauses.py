"""Pausing a session, and files of it that outlive its cell."""

from __future__ import annotations

from pathlib import Path

from ..client.workdir import WorkDir
from .archives import MAX_SAVED_BYTES, load, save
from .commands import SessionCommands


class SessionPauses(SessionCommands):
    """The part of a session that pauses, saves and loads it."""

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
            CellLostError: The cell is gone.
            SandboxUnavailableError: The cell did not start.
        """
        self._require_cell("has nothing to pause", paused=True)
        await self._shared.pause()

    async def resume(self) -> None:
        """Let the processes go on. Without a pause it does nothing.

        Raises:
            CellLostError: The cell is gone.
        """
        await self._shared.resume()

    @property
    def paused(self) -> bool:
        """True from `pause` to `resume`."""
        return self._shared.paused

    async def save(
        self, target: str | Path, *, max_bytes: int = MAX_SAVED_BYTES
    ) -> tuple[str, ...]:
        """Write the work dir into an archive, a tar file of this machine.

        It is kept: the bytes of regular files, their executable bit, folders, and links
        that stay inside. It is not kept: variables and processes, what lies outside of
        the work dir, times and other bits of modes, and what `list_files` leaves
        out. No process runs meanwhile, so the archive is of one moment. If it fails
        nothing of it stays.

        Args:
            target: The archive; there must be nothing. Only this user can read it.
            max_bytes: Bytes of all files together, by default 1 GiB. When it is
                exceeded the call fails.

        Returns:
            What was left out: links that lead out, sockets, pipes.

        Raises:
            InvalidInputError: There are more than 10,000 entries, a file has more than
                256 MiB, all have more than `max_bytes`, or `target` cannot be written.
            CellLostError: The cell is gone.
        """
        async with self._shared.stopped() as cell:
            return await save(WorkDir(cell, self._own_branch), Path(target), max_bytes)

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
            max_bytes: Bytes of all files together, by default 1 GiB. When it is
                exceeded the call fails.

        Raises:
            InvalidInputError: It is no such archive, or larger than `save` writes.
            CellLostError: The cell is gone.
        """
        async with self._shared.whole() as cell:
            return await load(WorkDir(cell, self._own_branch), Path(source), max_bytes)
