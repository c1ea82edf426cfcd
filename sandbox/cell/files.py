"""Files of the work dir, for the host: never through a link, never out, never waiting.

The supervisor does this itself, as the program's user, so it can do no more with
files than the program could. Each step of a path is opened on its own, without
following links; what is no regular file is never read or written.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager

from .frames import MAX_ARTIFACT_BYTES, MAX_ARTIFACTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAX_LISTED = 10_000
_MAX_DEPTH = 64
ARTIFACTS = "artifacts"


class FileProblem(Exception):
    """A request that cannot be met; the text is for the caller."""


@contextmanager
def acting_as(uid: int | None) -> Iterator[None]:
    """Use files as another user; None, or the own one, changes nothing."""
    if uid is None or uid == os.getuid():
        yield
        return
    ties = _ties()
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        _tie(ties)


def _ties() -> int | None:
    """Return what a change of user undoes: the signal of the launcher's death."""
    try:
        from . import linux

        return linux.parent_death_signal()
    except (ImportError, OSError):
        return None


def _tie(ties: int | None) -> None:
    if ties is None:
        return
    from . import linux

    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.prctl(linux.PR_SET_PDEATHSIG, ties)


def serve(
    header: dict[str, Any], payload: bytes, folder: str, uid: int | None
) -> tuple[dict[str, Any], bytes]:
    """Do what a `file` frame asks for; return the answer's header and payload."""
    try:
        with acting_as(uid):
            return _OPERATIONS[header["op"]](header, payload, folder)
    except FileProblem as problem:
        return {"error": str(problem)}, b""
    except OSError as error:
        return {"error": os.strerror(error.errno or 0)}, b""


def artifacts(
    folder: str, uid: int | None
) -> tuple[list[tuple[str, bytes]], list[str]]:
    """Return what is in a folder's `artifacts`, and the names of what did not fit."""
    found: list[tuple[str, bytes]] = []
    left: list[str] = []
    room = MAX_ARTIFACT_BYTES
    if _surely_lacks(folder, ARTIFACTS):
        return found, left
    with acting_as(uid):
        try:
            top = _open_folder(folder, [ARTIFACTS])
        except OSError:
            return [], []
        try:
            names = [name for name, kind, _ in _walk(top) if kind == "file"]
        except FileProblem as problem:
            return [], [str(problem)]
        for name in names:
            data = _taken(folder, name, room) if len(found) < MAX_ARTIFACTS else None
            if data is None:
                left.append(name)
            else:
                room -= len(data)
                found.append((name, data))
    return found, left


def _surely_lacks(folder: str, name: str) -> bool:
    """Look without becoming another user, where this one may look."""
    try:
        os.lstat(f"{folder}/{name}")
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def _taken(folder: str, name: str, room: int) -> bytes | None:
    try:
        with _opened(folder, f"{ARTIFACTS}/{name}", os.O_RDONLY) as fd:
            found = os.fstat(fd)
            # Another name may lead to it from where the program cannot read.
            if found.st_nlink != 1 or found.st_size > room:
                return None
            return os.pread(fd, found.st_size, 0)
    except (OSError, FileProblem):
        return None


def _write(
    header: dict[str, Any], payload: bytes, folder: str
) -> tuple[dict[str, Any], bytes]:
    offset = header["offset"]
    flags = os.O_WRONLY | os.O_CREAT | (0 if offset else os.O_TRUNC)
    _make_parents(folder, header["path"])
    with _opened(folder, header["path"], flags) as fd:
        view = memoryview(payload)
        while view:
            done = os.pwrite(fd, view, offset)
            view, offset = view[done:], offset + done
    return {}, b""


def _read(
    header: dict[str, Any], _: bytes, folder: str
) -> tuple[dict[str, Any], bytes]:
    with _opened(folder, header["path"], os.O_RDONLY) as fd:
        data = os.pread(fd, header["size"], header["offset"])
        return {"total": os.fstat(fd).st_size}, data


def _list(
    header: dict[str, Any], _: bytes, folder: str
) -> tuple[dict[str, Any], bytes]:
    parts = _parts(header["path"]) if header["path"] else []
    return {"entries": list(_walk(_open_folder(folder, parts)))}, b""


def _remove(
    header: dict[str, Any], _: bytes, folder: str
) -> tuple[dict[str, Any], bytes]:
    *parents, name = _parts(header["path"])
    parent = _open_folder(folder, parents)
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            _empty(name, parent)
            os.rmdir(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    finally:
        os.close(parent)
    return {}, b""


def _empty(name: str, parent: int) -> None:
    for _, folders, names, fd in os.fwalk(name, topdown=False, dir_fd=parent):
        for each in names:
            os.unlink(each, dir_fd=fd)
        for each in folders:
            try:
                os.rmdir(each, dir_fd=fd)
            except NotADirectoryError:
                # A link to a folder.
                os.unlink(each, dir_fd=fd)


_OPERATIONS = {"write": _write, "read": _read, "list": _list, "remove": _remove}


def _parts(path: str) -> list[str]:
    parts = path.split("/")
    if len(parts) > _MAX_DEPTH or any(each in ("", ".", "..") for each in parts):
        raise FileProblem("not a path inside the work dir")
    return parts


def _open_folder(folder: str, parts: list[str]) -> int:
    fd = os.open(folder, _DIRECTORY)
    for part in parts:
        fd = _step(fd, part)
    return fd


def _make_parents(folder: str, path: str) -> None:
    fd = os.open(folder, _DIRECTORY)
    for part in _parts(path)[:-1]:
        try:
            os.mkdir(part, dir_fd=fd)
        except FileExistsError:
            pass
        except OSError:
            os.close(fd)
            raise
        fd = _step(fd, part)
    os.close(fd)


def _step(fd: int, part: str) -> int:
    """Go from an open folder, which is closed, into one that is in it."""
    try:
        inner = os.open(part, _DIRECTORY, dir_fd=fd)
        # gVisor follows links here, O_NOFOLLOW or not.
        named = os.stat(part, dir_fd=fd, follow_symlinks=False)
    finally:
        os.close(fd)
    if not os.path.samestat(named, os.fstat(inner)):
        os.close(inner)
        raise FileProblem("there is a link on the way")
    return inner


@contextmanager
def _opened(folder: str, path: str, flags: int) -> Iterator[int]:
    *parents, name = _parts(path)
    parent = _open_folder(folder, parents)
    try:
        fd = os.open(name, flags | _PLAIN, 0o644, dir_fd=parent)
    finally:
        os.close(parent)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise FileProblem("not a regular file")
        yield fd
    finally:
        os.close(fd)


def _walk(top: int) -> Iterator[tuple[str, str, int]]:
    """Yield path, kind and size of what is below a folder, and close its descriptor."""
    try:
        listed = 0
        for place, folders, names, fd in os.fwalk(".", dir_fd=top):
            folders.sort()
            for name in sorted(folders + names):
                listed += 1
                if listed > _MAX_LISTED:
                    raise FileProblem(f"more than {_MAX_LISTED} files")
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                path = os.path.normpath(os.path.join(place, name))
                yield path, _kind(found.st_mode), found.st_size
    finally:
        os.close(top)


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"
