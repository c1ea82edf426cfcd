"""Moves files into and out of a cell's work dir."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import stat
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import anyio.lowlevel
import anyio.to_thread
from pydantic import BaseModel, ConfigDict

from toolcell.core import CellLostError, InvalidInputError

from ..cell.wire.frames import FrameError, strict_json
from ..config.argument_checks import check_kinds
from .download import MAX_DOWNLOAD_BYTES, Download, FileChunk
from .file_errors import file_error, host_error, known
from .header_numbers import whole
from .types import Program, RequestChannel

_CHUNK_BYTES = 4 * 1024 * 1024
# Read first: the file may turn out to be a second name of one that was written.
_FIRST_BYTES = 64 * 1024
_MAX_FILES = 10_000
_MAX_PATH_BYTES = 4096
_MAX_NAME_BYTES = 255
_MAX_DEPTH = 64
_REMOVE_SECONDS = 30.0

MAX_READ_BYTES = 256 * 1024 * 1024
"""Default limit on the bytes of a file that `read_file` returns. When it is reached the
file is refused, with its size in the error."""


class FileInfo(BaseModel):
    """One entry of a work dir."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    path: str
    """Its path below the work dir; absolute if an absolute folder was listed."""

    kind: Literal["file", "folder", "link", "other"]
    size: int
    """Bytes."""


def checked_path(where: str | PathLike[str], *, absolute: bool = False) -> str:
    """Return a path inside the work dir, `a/b` for `./a//b`.

    Args:
        where: The path.
        absolute: True if it may begin at the root of the cell, too.

    Raises:
        InvalidInputError: It is no text, empty, leads out, is too long, or absolute
            where that is not allowed.
    """
    path = os.fspath(where) if isinstance(where, PathLike) else where
    if not isinstance(path, str):
        raise file_error(
            f"a path must be text, not {type(path).__name__}", "invalid_path"
        )
    parts = [part for part in path.split("/") if part not in ("", ".")]
    why = ""
    top = "/" if absolute and path.startswith("/") else ""
    if not parts or (path.startswith("/") and not absolute):
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
            why = "is not valid Unicode"
            raise file_error(f"the path {path!r} {why}", "invalid_path") from None
        if max(sizes) > _MAX_NAME_BYTES or sum(sizes) > _MAX_PATH_BYTES:
            why = f"is longer than {_MAX_NAME_BYTES} bytes a name"
    if why:
        raise file_error(f"the path {path[:200]!r} {why}", "invalid_path")
    return top + "/".join(parts)


def _bytes_of(data: bytes | str) -> memoryview:
    try:
        return memoryview(data.encode() if isinstance(data, str) else data)
    except (TypeError, UnicodeEncodeError) as error:
        why = f"this cannot be written to a file: {error}"
        raise file_error(why, "invalid_data") from None


class WorkDir:
    """The files of one cell, or of one branch of it.

    `SessionFiles` says what its methods do, and what they raise.

    Args:
        cell: Leads to the cell. If it is the cell itself no run may be under way in it.
        branch: The branch, or empty for the cell's own work dir.
    """

    def __init__(self, cell: RequestChannel, branch: str = "") -> None:
        self._cell = cell
        self._branch = branch
        self._owns_root = cell.traits.level != "process"

    def _checked(self, path: str | PathLike[str]) -> str:
        return checked_path(path, absolute=self._owns_root)

    async def write(self, path: str | PathLike[str], data: bytes | str) -> None:
        """Write a file, as `SessionFiles.write_file`."""
        await self._write(self._checked(path), _bytes_of(data), {})

    async def _write(self, name: str, whole: memoryview, mode: dict[str, bool]) -> None:
        offset = 0
        while True:
            part = whole[offset : offset + _CHUNK_BYTES]
            request = {"op": "write", "path": name, "offset": offset, **mode}
            await self.ask(request, part)
            offset += len(part)
            if offset >= len(whole):
                return

    async def write_all(self, files: Mapping[str, bytes | str] | None) -> None:
        """Write files by their paths; None writes nothing. Raises as `write`."""
        check_kinds(files=(files, Mapping))
        for path, data in (files or {}).items():
            await self.write(path, data)

    async def with_inputs(self, program: Program) -> Program:
        """Return a program whose large inputs, if it has any, are in a file here.

        Its process removes the file before the program begins.

        Raises:
            InvalidInputError: The disk is full.
            CellLostError: The cell went away.
        """
        if not program.large_inputs:
            return program
        # No earlier program of a session may have put something in its place.
        name = f".inputs-{secrets.token_hex(16)}"
        try:
            await self.write(name, program.large_inputs)
        except BaseException:
            # A cell that runs no other program is about to end.
            if not program.final:
                lost = contextlib.suppress(InvalidInputError, CellLostError)
                with anyio.CancelScope(shield=True), lost:
                    await self.remove(name)
            raise
        return program._replace(large_inputs=b"", inputs_file=name)

    async def read(
        self, path: str | PathLike[str], max_bytes: int = MAX_READ_BYTES
    ) -> bytes:
        """Return a file's bytes, as `SessionFiles.read_file`."""
        name = self._checked(path)
        # It grows in place, where a list of pieces would take as much memory again.
        whole = io.BytesIO()
        async with aclosing(self.chunks(name, max_bytes, _CHUNK_BYTES)) as found:
            async for chunk in found:
                whole.write(chunk.data)
        return whole.getvalue()

    async def chunks(
        self, name: str, max_bytes: int, first: int
    ) -> AsyncGenerator[FileChunk, None]:
        """Yield the bytes of a file; the first piece has at most `first` of them.

        Args:
            name: Its path, checked.
            max_bytes: The largest size that it may have.
            first: Bytes of the first piece.

        Raises:
            InvalidInputError: There is no such file, or it is larger.
            CellLostError: The cell went away.
        """
        offset, size = 0, first
        while True:
            request = {"op": "read", "path": name, "offset": offset, "size": size}
            answer, data = await self.ask(request)
            chunk = _chunk(answer, data)
            offset += len(data)
            if max(chunk.total, offset) > max_bytes:
                message = f"{name} has {chunk.total} bytes, the limit is {max_bytes}"
                raise file_error(message, "too_large")
            yield chunk
            if not data or offset >= chunk.total:
                return
            size = _CHUNK_BYTES

    async def list(self, path: str = "") -> tuple[FileInfo, ...]:
        """Return what is below a folder, as `SessionFiles.list_files`."""
        name = self._checked(path) if path else ""
        _, entries = await self.ask({"op": "list", "path": name})
        paths, found = [name], list[FileInfo]()
        try:
            for line in entries.splitlines():
                found += _listed(paths, strict_json(line))
                # Thousands of long names would block other tasks.
                await anyio.lowlevel.checkpoint()
        except (IndexError, TypeError, ValueError) as error:
            raise _broken(error) from None
        return tuple(found)

    async def remove(self, path: str | PathLike[str]) -> None:
        """Remove what is at a path, as `SessionFiles.remove`."""
        name = self._checked(path)
        until = anyio.current_time() + _REMOVE_SECONDS
        # The cell takes some two seconds at a time, so that limits of a run are kept.
        while (await self.ask({"op": "remove", "path": name}))[0].get("more"):
            if anyio.current_time() > until:
                why = f"{name}: not removed in {_REMOVE_SECONDS:g} seconds"
                raise file_error(why, "busy")

    async def upload(self, source: str | Path, path: str = "") -> int:
        """Write the files of a folder of this machine, as `SessionFiles.upload`."""
        inside = f"{self._checked(path)}/" if path else ""
        found = await anyio.to_thread.run_sync(
            lambda: list(_local_entries(Path(source)))
        )
        files = 0
        for name, is_file in found:
            target = self._checked(inside + name)
            if not is_file:
                await self.ask({"op": "mkdir", "path": target})
                continue
            local = Path(source, name)
            data, executable = await anyio.to_thread.run_sync(_read_local, local)
            await self._write(target, memoryview(data), {"executable": executable})
            files += 1
        return files

    async def download(
        self,
        target: str | Path,
        path: str = "",
        *,
        max_bytes: int = MAX_DOWNLOAD_BYTES,
    ) -> int:
        """Write files into a new folder here, as `SessionFiles.download`."""
        entries = await self.list(path)
        files = 0
        async with Download(Path(target), max_bytes) as download:
            for entry in entries:
                local = checked_path(entry.path.lstrip("/"))
                if entry.kind == "folder":
                    await download.make_folder(local)
                elif entry.kind == "file":
                    name = self._checked(entry.path)
                    chunks = self.chunks(name, MAX_READ_BYTES, _FIRST_BYTES)
                    await download.write(local, chunks)
                    files += 1
        return files

    async def ask(
        self, request: dict[str, Any], payload: bytes | memoryview = b""
    ) -> tuple[dict[str, Any], bytes]:
        """Have the cell carry out an operation on a path; return its answer.

        Raises:
            InvalidInputError: It cannot be done.
            CellLostError: The cell went away.
        """
        header = {"type": "file", "branch": self._branch, **request}
        answer, data = await self._cell.ask(header, payload)
        if "error" in answer:
            what = f"{request['path'] or '.'}: {str(answer['error'])[:1000]}"
            raise file_error(what, known(answer.get("reason")))
        return answer, data


def _broken(error: Exception) -> CellLostError:
    return CellLostError(f"the cell broke the protocol: {error}")


def _chunk(answer: dict[str, Any], data: bytes) -> FileChunk:
    """Return a piece of a file. Raises CellLostError if the answer makes no sense."""
    try:
        return FileChunk(
            data=data,
            total=whole(answer["total"]),
            executable=answer["executable"] is True,
            inode=str(answer["inode"]),
        )
    except (KeyError, FrameError) as error:
        raise _broken(error) from None


def _listed(paths: list[str], entries: Any) -> Iterator[FileInfo]:
    """Yield entries and append their paths: each entry names its folder by number."""
    for number, name, kind, size in entries:
        folder = paths[whole(number)]
        path = f"{folder}/{name}" if folder else name
        if len(path) > _MAX_PATH_BYTES + _MAX_DEPTH:
            raise ValueError("a path that is too long")
        paths.append(path)
        yield FileInfo(path=path, kind=kind, size=whole(size))


def _local_entries(folder: Path) -> Iterator[tuple[str, bool]]:
    """Yield paths and True for regular files; folders without files and False."""
    if not folder.is_dir():
        raise file_error(f"{folder} is not a folder", "not_folder")
    count = 0
    for place, inner, names in os.walk(folder):
        here = Path(place)
        files = [name for name in names if stat.S_ISREG((here / name).lstat().st_mode)]
        is_leaf = all((here / each).is_symlink() for each in inner)
        entries = [here / file for file in files]
        if not entries and is_leaf and here != folder:
            entries = [here]
        count += len(entries)
        if count > _MAX_FILES:
            raise file_error(f"{folder} holds more than {_MAX_FILES} files", "too_many")
        for path in entries:
            yield str(path.relative_to(folder)), path != here


def _read_local(path: Path) -> tuple[bytes, bool]:
    """Return a file's bytes, and whether it is executable."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            executable = bool(os.fstat(fd).st_mode & stat.S_IXUSR)
            return file.read(), executable
    except OSError as error:
        raise host_error(f"cannot read {path}", error) from None
