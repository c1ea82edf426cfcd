"""Files in and out of a cell's work dir."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import anyio.to_thread
from pydantic import BaseModel, ConfigDict

from toolcell.core import CellLostError, InvalidInputError

from .cell.frames import strict_json
from .cell_client import Cell
from .result import Artifact

_CHUNK_BYTES = 4 * 1024 * 1024
_MAX_FILES = 10_000
_MAX_PATH_BYTES = 4096
_MAX_NAME_BYTES = 255
_MAX_DEPTH = 64

MAX_READ_BYTES = 256 * 1024 * 1024
"""Bytes of one file that `read_file` returns at most unless told otherwise. When
it is reached the file is refused, with its size in the error."""


class FileInfo(BaseModel):
    """One entry of a work dir."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    path: str
    """Its path below the work dir."""

    kind: Literal["file", "folder", "link", "other"]
    size: int
    """Bytes."""


def checked_path(where: str | PathLike[str]) -> str:
    """Return a path inside the work dir, `a/b` for `./a//b`.

    Raises:
        InvalidInputError: It is no text, empty, absolute, leads out, or is too long.
    """
    path = os.fspath(where) if isinstance(where, PathLike) else where
    if not isinstance(path, str):
        raise InvalidInputError(f"a path must be text, not {type(path).__name__}")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    why = ""
    if not parts or path.startswith("/"):
        why = "is not relative to the work dir"
    elif ".." in parts:
        why = "leads out of the work dir"
    elif "\0" in path:
        why = "holds a NUL character"
    elif len(parts) > _MAX_DEPTH:
        why = f"is deeper than {_MAX_DEPTH} folders"
    else:
        try:
            sizes = [len(part.encode()) for part in parts]
        except UnicodeEncodeError:
            raise InvalidInputError(f"the path {path!r} is not valid Unicode") from None
        if max(sizes) > _MAX_NAME_BYTES or sum(sizes) > _MAX_PATH_BYTES:
            why = f"is longer than {_MAX_NAME_BYTES} bytes a name"
    if why:
        raise InvalidInputError(f"the path {path[:200]!r} {why}")
    return "/".join(parts)


def _bytes_of(data: bytes | str) -> memoryview:
    try:
        return memoryview(data.encode() if isinstance(data, str) else data)
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidInputError(f"this cannot be written to a file: {error}") from None


class WorkDir:
    """The files of one cell, or of one branch of it.

    Args:
        cell: Whose files; it must not be in a run.
        branch: The branch, or empty for the cell's own work dir.
    """

    def __init__(self, cell: Cell, branch: str = "") -> None:
        self._cell = cell
        self._branch = branch

    async def write(self, path: str | PathLike[str], data: bytes | str) -> None:
        """Write a file, its folders included; one that is there is replaced.

        Raises:
            InvalidInputError: The path is no path inside, a link, or not a file;
                or the disk is full.
            CellLostError: The cell went away.
        """
        whole, name, offset = _bytes_of(data), checked_path(path), 0
        while True:
            part = whole[offset : offset + _CHUNK_BYTES]
            await self._ask({"op": "write", "path": name, "offset": offset}, part)
            offset += len(part)
            if offset >= len(whole):
                return

    async def read(
        self, path: str | PathLike[str], max_bytes: int = MAX_READ_BYTES
    ) -> bytes:
        """Return a file's bytes; links are not followed.

        Raises:
            InvalidInputError: There is no such file, or it is larger.
            CellLostError: The cell went away.
        """
        name, parts, offset = checked_path(path), [], 0
        while True:
            wish = {"op": "read", "path": name, "offset": offset, "size": _CHUNK_BYTES}
            answer, data = await self._ask(wish)
            if answer["total"] > max_bytes:
                raise InvalidInputError(
                    f"{path} has {answer['total']} bytes, the limit is {max_bytes}",
                    hint="raise max_bytes",
                )
            parts.append(data)
            offset += len(data)
            if not data or offset >= answer["total"]:
                return b"".join(parts)

    async def list(self, path: str = "") -> tuple[FileInfo, ...]:
        """Return what is below a folder, 10,000 entries at most.

        What no path of this class can name is left out: names that are not UTF-8, and
        what is below 64 folders or longer than 4,096 bytes.

        Raises:
            InvalidInputError: There is no such folder, or it holds more.
            CellLostError: The cell went away.
        """
        name = checked_path(path) if path else ""
        _, entries = await self._ask({"op": "list", "path": name})
        try:
            return tuple(_listed(name, strict_json(entries)))
        except (IndexError, TypeError, ValueError) as error:
            raise CellLostError(f"the cell listed nonsense: {error}") from None

    async def remove(self, path: str | PathLike[str]) -> None:
        """Remove a file, a link, or a folder with all that is in it.

        Raises:
            InvalidInputError: There is no such thing.
            CellLostError: The cell went away.
        """
        await self._ask({"op": "remove", "path": checked_path(path)})

    async def upload(self, source: str | Path, path: str = "") -> int:
        """Write a folder's regular files into the work dir; return how many.

        Raises:
            InvalidInputError: It is no folder, or holds more than 10,000 files.
            CellLostError: The cell went away.
        """
        inside = f"{checked_path(path)}/" if path else ""
        found = await anyio.to_thread.run_sync(lambda: list(_local_files(Path(source))))
        for name in found:
            data = await anyio.to_thread.run_sync(_read_local, Path(source, name))
            await self.write(inside + name, data)
        return len(found)

    async def download(self, target: str | Path, path: str = "") -> int:
        """Write the work dir's regular files into a new folder; return how many.

        Names come from the program: what would lead out of `target` is refused,
        and nothing that is there is followed or replaced.

        Raises:
            InvalidInputError: `target` exists, or a name cannot be used.
            CellLostError: The cell went away.
        """
        files = [each for each in await self.list(path) if each.kind == "file"]
        try:
            await anyio.Path(target).mkdir(mode=0o700)
        except OSError as error:
            raise InvalidInputError(
                f"cannot make the folder {target}: {error.strerror}"
            ) from None
        for each in files:
            place = Path(target, checked_path(each.path))
            data = await self.read(each.path)
            await anyio.to_thread.run_sync(_write_local, place, data)
        return len(files)

    async def _ask(
        self, wish: dict[str, Any], payload: bytes | memoryview = b""
    ) -> tuple[dict[str, Any], bytes]:
        header = {"type": "file", "branch": self._branch, **wish}
        answer, data = await self._cell.ask(header, payload)
        if "error" in answer:
            raise InvalidInputError(f"{wish['path'] or '.'}: {answer['error']}")
        return answer, data


def save_artifact(artifact: Artifact, folder: Path) -> Path:
    """Write an artifact below a folder of the host, and return where.

    Args:
        artifact: Of a run; its name is the program's word.
        folder: Made if it is missing. Only the host should be able to write there.

    Raises:
        InvalidInputError: The name leads elsewhere, or the file cannot be written; a
            file that stands there is not replaced.
    """
    place = Path(folder, checked_path(artifact.name))
    try:
        _write_local(place, artifact.data)
    except OSError as error:
        raise InvalidInputError(f"cannot write {place}: {error.strerror}") from None
    return place


def _listed(folder: str, entries: Any) -> Iterator[FileInfo]:
    """Put together paths: each entry names its folder by number, 0 is the first one."""
    paths = [folder]
    for number, name, kind, size in entries:
        path = f"{paths[number]}/{name}" if paths[number] else name
        if len(path) > _MAX_PATH_BYTES + _MAX_DEPTH:
            raise ValueError("a path that is too long")
        paths.append(path)
        yield FileInfo(path=path, kind=kind, size=size)


def _local_files(folder: Path) -> Iterator[str]:
    if not folder.is_dir():
        raise InvalidInputError(f"{folder} is not a folder")
    count = 0
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if not stat.S_ISREG(path.lstat().st_mode):
                continue
            count += 1
            if count > _MAX_FILES:
                raise InvalidInputError(f"{folder} holds more than {_MAX_FILES} files")
            yield str(path.relative_to(folder))


def _read_local(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        return file.read()


def _write_local(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
