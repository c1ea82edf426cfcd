"""Writes files of a cell below a new folder of the host: all of them, or nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread

from .file_errors import file_error, host_error

MAX_DOWNLOAD_BYTES = 1024 * 1024 * 1024
"""Default limit on the bytes that `download` writes, holes of files included. When it
is reached nothing of the download stays, and the error names the file."""

_BLOCK_BYTES = 64 * 1024
_ZEROS = bytes(_BLOCK_BYTES)


class FileChunk(NamedTuple):
    """Consecutive bytes of a file, and facts about the file."""

    data: bytes
    total: int
    """The size of the file."""

    executable: bool
    inode: str
    """An id that all names of the file share; empty if it has one name."""


class Download:
    """A new folder of the host that is written whole, or not at all.

    A file that has several names is written once, and linked.

    Args:
        target: The folder; it must not exist.
        max_bytes: The largest number of bytes of all files together.
    """

    def __init__(self, target: Path, max_bytes: int) -> None:
        self._target = target
        self._max_bytes = max_bytes
        self._left = max_bytes
        self._linked: dict[str, Path] = {}

    async def __aenter__(self) -> Download:
        try:
            await anyio.Path(self._target).mkdir(mode=0o700)
        except OSError as error:
            what = f"cannot make the folder {self._target}"
            raise host_error(what, error) from None
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(shutil.rmtree, self._target, True)

    async def make_folder(self, name: str) -> None:
        """Make a folder and those around it. Raises InvalidInputError."""
        await anyio.to_thread.run_sync(make_local, self._target / name)

    async def write(self, name: str, chunks: AsyncGenerator[FileChunk, None]) -> None:
        """Write a file.

        Raises:
            InvalidInputError: It cannot be written, or there would be too much.
        """
        place = self._target / name
        fd = -1
        end = 0
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    if fd == -1:
                        if await self._link(place, chunk.inode):
                            return
                        fd = await anyio.to_thread.run_sync(
                            create_local, place, chunk.executable
                        )
                    self._require_room(name, chunk.total)
                    await anyio.to_thread.run_sync(_put, fd, chunk.data, end)
                    end += len(chunk.data)
            await anyio.to_thread.run_sync(os.ftruncate, fd, end)
        except OSError as error:
            raise host_error(f"cannot write {place}", error) from None
        finally:
            if fd != -1:
                os.close(fd)
        self._left -= end

    def _require_room(self, name: str, size: int) -> None:
        if size > self._left:
            done = self._max_bytes - self._left
            raise file_error(
                f"{name} has {size} bytes, {done} are written and "
                f"{self._max_bytes} is the limit of a download",
                "too_large",
            )

    async def _link(self, place: Path, inode: str) -> bool:
        """Give a file that was written another name; False if none was."""
        if not inode:
            return False
        first = self._linked.setdefault(inode, place)
        if first == place:
            return False
        await self.make_folder(str(place.parent.relative_to(self._target)))
        await anyio.to_thread.run_sync(os.link, first, place)
        return True


def make_local(path: Path) -> None:
    """Make a folder of the host and those around it. Raises InvalidInputError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise host_error(f"cannot make the folder {path}", error) from None


def create_local(path: Path, executable: bool) -> int:
    """Open a file that is not there yet, its folders included.

    Raises:
        InvalidInputError: A folder cannot be made.
        OSError: The file cannot.
    """
    make_local(path.parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o700 if executable else 0o600)


def _put(fd: int, data: bytes, offset: int) -> None:
    """Write bytes at an offset; blocks of zeros become holes, as they may have been."""
    for start in range(0, len(data), _BLOCK_BYTES):
        block = data[start : start + _BLOCK_BYTES]
        if block != _ZEROS[: len(block)]:
            _put_all(fd, memoryview(block), offset + start)


def _put_all(fd: int, view: memoryview, offset: int) -> None:
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done
