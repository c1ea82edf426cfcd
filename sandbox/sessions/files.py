"""Files of a session's work dir."""

from __future__ import annotations

from abc import abstractmethod
from os import PathLike
from pathlib import Path

from ..client.download import MAX_DOWNLOAD_BYTES
from ..client.workdir import MAX_READ_BYTES, FileInfo, WorkDir
from ..runs.program_factory import ProgramFactory
from .shared_cell import SharedCell


class SessionFiles:
    """The part of a session that reads and writes its work dir, beside its runs.

    Paths are relative to the work dir, or absolute inside the cell, which sees its own
    root; in `process` isolation it does not, and absolute paths are refused. The
    program's user must have the right to what is asked for.
    """

    _programs: ProgramFactory
    _shared: SharedCell

    @property
    @abstractmethod
    def _own_branch(self) -> str: ...

    async def write_file(self, path: str | PathLike[str], data: bytes | str) -> None:
        """Write a file, its folders included; one that is there is replaced.

        Args:
            path: Relative to the work dir, or absolute in the cell.
            data: Its bytes, or a text for UTF-8.

        Raises:
            InvalidInputError: The path is no path inside, a link, or not a file; or
                the disk is full.
            CellLostError: The cell is gone.
            SandboxUnavailableError: The cell did not start.
        """
        async with self._shared.files(self._programs.spawn) as files:
            await WorkDir(files, self._own_branch).write(path, data)

    async def read_file(
        self, path: str | PathLike[str], max_bytes: int = MAX_READ_BYTES
    ) -> bytes:
        """Return a file's bytes; links are not followed.

        Args:
            path: Relative to the work dir, or absolute in the cell.
            max_bytes: The largest size that it may have, by default 256 MiB. When it is
                exceeded the call fails.

        Raises:
            InvalidInputError: There is no such file, or it is larger.
            CellLostError: The cell is gone.
            SandboxUnavailableError: The cell did not start.
        """
        async with self._shared.files(self._programs.spawn) as files:
            return await WorkDir(files, self._own_branch).read(path, max_bytes)

    async def list_files(self, path: str = "") -> tuple[FileInfo, ...]:
        """Return what is below a folder, 10,000 entries at most.

        Entries that no path can name are left out: names that are not UTF-8, and paths
        below 64 folders or of more than 4,096 bytes.

        Args:
            path: The folder; empty for the work dir.

        Raises:
            InvalidInputError: There is no such folder, or it holds more.
            CellLostError: The cell is gone.
            SandboxUnavailableError: The cell did not start.
        """
        async with self._shared.files(self._programs.spawn) as files:
            return await WorkDir(files, self._own_branch).list(path)

    async def remove(self, path: str | PathLike[str]) -> None:
        """Remove a file, a link, or a folder with all that is in it.

        Raises:
            InvalidInputError: There is no such thing, or it takes 30 seconds.
            CellLostError: The cell is gone.
            SandboxUnavailableError: The cell did not start.
        """
        async with self._shared.files(self._programs.spawn) as files:
            await WorkDir(files, self._own_branch).remove(path)

    async def upload(self, source: str | Path, path: str = "") -> int:
        """Write the regular files of a folder of this machine; return how many.

        Empty folders are made, too. A file that its owner may execute has mode 0755
        in the cell, any other 0644.

        Args:
            source: The folder here.
            path: The folder there; empty for the work dir.

        Raises:
            InvalidInputError: It is no folder, holds more than 10,000 entries, or
                cannot be read.
            CellLostError: The cell is gone.
            SandboxUnavailableError: The cell did not start.
        """
        async with self._shared.files(self._programs.spawn) as files:
            return await WorkDir(files, self._own_branch).upload(source, path)

    async def download(
        self,
        target: str | Path,
        path: str = "",
        *,
        max_bytes: int = MAX_DOWNLOAD_BYTES,
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
            max_bytes: Bytes of all files together, by default 1 GiB. When it is
                exceeded the call fails.

        Raises:
            InvalidInputError: `target` exists, a name cannot be used, a file has more
                than 256 MiB, or all have more than `max_bytes`.
            CellLostError: The cell is gone.
            SandboxUnavailableError: The cell did not start.
        """
        async with self._shared.files(self._programs.spawn) as files:
            work = WorkDir(files, self._own_branch)
            return await work.download(target, path, max_bytes=max_bytes)
