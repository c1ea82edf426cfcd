"""Files of a session's work dir."""

from __future__ import annotations

from abc import abstractmethod
from os import PathLike
from pathlib import Path

from .client.download import MAX_DOWNLOAD_BYTES
from .client.workdir import MAX_READ_BYTES, FileInfo, WorkDir
from .program_factory import ProgramFactory
from .shared_cell import SharedCell


class SessionFiles:
    """The part of a session that reads and writes its work dir, beside its runs."""

    _programs: ProgramFactory
    _shared: SharedCell

    @property
    @abstractmethod
    def _own_branch(self) -> str: ...

    async def write_file(self, path: str | PathLike[str], data: bytes | str) -> None:
        """Write a file of the work dir, with its folders; as `WorkDir.write`."""
        async with self._shared.files(self._programs.spawn) as files:
            await WorkDir(files, self._own_branch).write(path, data)

    async def read_file(
        self, path: str | PathLike[str], max_bytes: int = MAX_READ_BYTES
    ) -> bytes:
        """Return the bytes of a file of the work dir; as `WorkDir.read`."""
        async with self._shared.files(self._programs.spawn) as files:
            return await WorkDir(files, self._own_branch).read(path, max_bytes)

    async def list_files(self, path: str = "") -> tuple[FileInfo, ...]:
        """Return what is below a folder of the work dir; as `WorkDir.list`."""
        async with self._shared.files(self._programs.spawn) as files:
            return await WorkDir(files, self._own_branch).list(path)

    async def remove(self, path: str | PathLike[str]) -> None:
        """Remove a file or a folder of the work dir; as `WorkDir.remove`."""
        async with self._shared.files(self._programs.spawn) as files:
            await WorkDir(files, self._own_branch).remove(path)

    async def upload(self, source: str | Path, path: str = "") -> int:
        """Write a folder's files into the work dir; as `WorkDir.upload`."""
        async with self._shared.files(self._programs.spawn) as files:
            return await WorkDir(files, self._own_branch).upload(source, path)

    async def download(
        self,
        target: str | Path,
        path: str = "",
        *,
        max_bytes: int = MAX_DOWNLOAD_BYTES,
    ) -> int:
        """Write the work dir's files into a new folder; as `WorkDir.download`."""
        async with self._shared.files(self._programs.spawn) as files:
            work = WorkDir(files, self._own_branch)
            return await work.download(target, path, max_bytes=max_bytes)
