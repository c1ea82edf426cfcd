"""Archives of work dirs: tar files that outlive a cell, and are trusted no more."""

from __future__ import annotations

import os
import posixpath
import stat
import tarfile
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import IO

import anyio
import anyio.to_thread

from ..client.file_errors import file_error, host_error
from ..client.tar_entries import entries_of
from ..client.workdir import MAX_READ_BYTES, FileInfo, WorkDir, checked_path

MAX_SAVED_BYTES = 1024 * 1024 * 1024
"""Default limit on the bytes of all files of an archive. When it is exceeded nothing is
saved or loaded."""

_MAX_ENTRIES = 10_000
# A header, the extended header of a long name, and padding.
_ENTRY_BYTES = 16 * 1024
_PIECE_BYTES = 1024 * 1024
_BLOCK = tarfile.BLOCKSIZE


async def save(work: WorkDir, target: Path, max_bytes: int) -> tuple[str, ...]:
    """Write a work dir into an archive; return what was left out. See `Session.save`.

    Raises:
        InvalidInputError: It is too large, or `target` cannot be written.
        CellLostError: The cell went away.
    """
    entries = await work.list()
    total = sum(entry.size for entry in entries if entry.kind == "file")
    if total > max_bytes:
        why = f"the files have {total} bytes, the limit is {max_bytes}"
        raise file_error(why, "too_large")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = await anyio.to_thread.run_sync(os.open, target, flags, 0o600)
    except OSError as error:
        raise host_error(f"cannot write {target}", error) from None
    try:
        with os.fdopen(fd, "wb") as file:
            omitted = await _write(work, entries, file)
            await anyio.to_thread.run_sync(_finish, file)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(target)
        if isinstance(error, OSError):
            raise host_error(f"cannot write {target}", error) from None
        raise
    return omitted


def _finish(file: IO[bytes]) -> None:
    file.write(bytes(2 * _BLOCK))
    file.flush()
    os.fsync(file.fileno())


async def _write(
    work: WorkDir, entries: tuple[FileInfo, ...], file: IO[bytes]
) -> tuple[str, ...]:
    omitted = []
    for entry in entries:
        header = tarfile.TarInfo(entry.path)
        if entry.kind == "file":
            await _write_file(work, entry, header, file)
            continue
        if entry.kind == "folder":
            header.type = tarfile.DIRTYPE
        elif entry.kind == "link" and (to := await _target_of(work, entry.path)):
            header.type, header.linkname = tarfile.SYMTYPE, to
        else:
            omitted.append(entry.path)
            continue
        await anyio.to_thread.run_sync(file.write, _packed(header))
    return tuple(omitted)


async def _target_of(work: WorkDir, path: str) -> str:
    """Return where a link leads; empty if that is outside, or no text."""
    _, data = await work.ask({"op": "read_link", "path": path})
    try:
        target = data.decode()
    except UnicodeDecodeError:
        return ""
    return "" if _leads_out(path, target) else target


def _leads_out(path: str, target: str) -> bool:
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return not target or target.startswith("/") or inside.split("/")[0] == ".."


async def _write_file(
    work: WorkDir, entry: FileInfo, header: tarfile.TarInfo, file: IO[bytes]
) -> None:
    size = -1
    async with aclosing(work.chunks(entry.path, MAX_READ_BYTES, _PIECE_BYTES)) as found:
        async for chunk in found:
            if size < 0:
                size = left = header.size = chunk.total
                header.mode = 0o755 if chunk.executable else 0o644
                await anyio.to_thread.run_sync(file.write, _packed(header))
            left -= len(chunk.data)
            await anyio.to_thread.run_sync(file.write, chunk.data)
    if left or size != entry.size:
        raise file_error(f"{entry.path} was changed meanwhile", "busy")
    file.write(bytes(-size % _BLOCK))


def _packed(header: tarfile.TarInfo) -> bytes:
    return header.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


async def load(work: WorkDir, source: Path, max_bytes: int) -> int:
    """Unpack an archive into a work dir; return how many entries. See `Session.load`.

    Raises:
        InvalidInputError: It is not an archive of `save`, or too large.
        CellLostError: The cell went away.
    """
    with _opened(source, max_bytes) as file:
        archive, members = await anyio.to_thread.run_sync(
            _checked, file, source, max_bytes
        )
        # Links last, so that no entry is behind one.
        for member in sorted(members, key=tarfile.TarInfo.issym):
            if member.issym():
                request = {"op": "make_link", "path": member.name}
                await work.ask({**request, "target": member.linkname})
            elif member.isdir():
                await work.ask({"op": "mkdir", "path": member.name})
            else:
                await _load_file(work, archive, member)
    return len(members)


async def _load_file(
    work: WorkDir, archive: tarfile.TarFile, member: tarfile.TarInfo
) -> None:
    data = archive.extractfile(member)
    assert data is not None
    request = {"op": "write", "path": member.name, "executable": bool(member.mode & 64)}
    offset = 0
    while True:
        piece = await anyio.to_thread.run_sync(data.read, _PIECE_BYTES)
        if len(piece) < min(_PIECE_BYTES, member.size - offset):
            raise file_error("the archive was changed meanwhile", "busy")
        await work.ask({**request, "offset": offset}, piece)
        offset += len(piece)
        if offset >= member.size:
            return


class _BoundedFile:
    """A file that is read in small pieces: a header may ask for any number of bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell, self.close = file.seek, file.tell, file.close

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _PIECE_BYTES:
            raise tarfile.ReadError("a header is too large")
        return self._file.read(size)


@contextmanager
def _opened(source: Path, max_bytes: int) -> Iterator[IO[bytes]]:
    """Open a file that may be an archive. Raises InvalidInputError."""
    try:
        fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise file_error(f"{source} is not a regular file", "not_regular")
            if found.st_size > max_bytes + _MAX_ENTRIES * _ENTRY_BYTES:
                raise file_error(f"{source} has {found.st_size} bytes", "too_large")
            yield file
    except OSError as error:
        raise host_error(f"cannot read {source}", error) from None


def _checked(
    file: IO[bytes], source: Path, max_bytes: int
) -> tuple[tarfile.TarFile, list[tarfile.TarInfo]]:
    """Return an archive and its entries, all of them harmless.

    Raises:
        InvalidInputError: It is no archive, or one of its entries is not harmless.
    """
    bounded: IO[bytes] = _BoundedFile(file)  # type: ignore[assignment]
    found: dict[str, tarfile.TarInfo] = {}
    total = 0
    try:
        archive = tarfile.open(fileobj=bounded, mode="r:")
        for member in entries_of(archive):
            member.name = name = checked_path(member.name)
            total += member.size
            if why := _why_not(member, name):
                raise _refused(source, f"{name}: {why}")
            if name in found:
                raise _refused(source, f"{name} comes twice")
            found[name] = member
            if total > max_bytes or len(found) > _MAX_ENTRIES:
                raise file_error(f"{source} holds too much", "too_large")
    except (tarfile.TarError, RecursionError, ValueError, OverflowError) as error:
        raise _refused(source, f"a header cannot be read: {error}") from None
    return archive, list(found.values())


def _why_not(member: tarfile.TarInfo, name: str) -> str:
    if member.issparse():
        return "it is a sparse file"
    if member.issym():
        return "the link leads out" if _leads_out(name, member.linkname) else ""
    if member.isdir():
        return ""
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        return "it is neither a file, a folder nor a link"
    return "it is too large" if member.size > MAX_READ_BYTES else ""


def _refused(source: Path, why: str) -> Exception:
    return file_error(f"{source} cannot be loaded: {why}", "invalid_data")
