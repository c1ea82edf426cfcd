"""Reads and changes files of the work dir for the host.

The supervisor does this as the program's user and step by step (see `path_steps`).
Whatever a program has made of its folders, each operation takes bounded time and
memory.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time

from ..wire.contract import reason_of
from ..wire.frames import Frame, encode_header, frame_prefix
from .file_tree import MAX_LISTED, LeftOut, Tree
from .path_steps import (
    DIRECTORY,
    FileProblem,
    acting_as,
    inside,
    make_folders,
    open_folder,
    opened,
    steps_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# This process may read and write its own memory there, whatever user it acts as.
_KERNEL_FOLDERS = ("proc", "sys")
_ENTRIES_AT_ONCE = 100
# Landlock makes a step as dear as the path above it is long: the way down takes about a
# second for so many folders, and 25 times as long for five times as many.
_MAX_EMPTIED_DEPTH = 2_000
# The host waits for 60 seconds.
_LIST_SECONDS = 30.0
# A program may run meanwhile, whose limits nobody keeps; the host asks again. The way
# down to the first entry that can be removed is not counted, so that each request gets
# on: it is the same each time.
_REMOVE_SECONDS = 1.0


def answer(
    frame: Frame, folder: str, uid: int | None, *, owns_root: bool
) -> tuple[bytes, bytes]:
    """Carry out a `file` or `file_ask` frame; return the parts of the answer's frame.

    Args:
        frame: The frame; one that passes beside runs has a number, and so has its
            answer.
        folder: As in `serve`.
        uid: As in `serve`.
        owns_root: As in `serve`.
    """
    asked = frame.header
    return _framed(
        asked, *serve(asked, frame.payload, folder, uid, owns_root=owns_root)
    )


def refuse(frame: Frame) -> tuple[bytes, bytes]:
    """Answer a frame whose bytes have no room."""
    why = {"error": os.strerror(errno.ENOSPC), "reason": "no_space"}
    return _framed(frame.header, why, b"")


def _framed(
    asked: dict[str, Any], answer: dict[str, Any], data: bytes
) -> tuple[bytes, bytes]:
    kind: dict[str, Any] = {"type": "file"}
    if asked["type"] == "file_ask":
        kind = {"type": "file_told", "id": asked["id"]}
    return frame_prefix(encode_header({**answer, **kind}), len(data)), data


def serve(
    header: dict[str, Any],
    payload: bytes,
    folder: str,
    uid: int | None,
    *,
    owns_root: bool,
) -> tuple[dict[str, Any], bytes]:
    """Carry out what a frame asks; return header and payload of the answer.

    Args:
        header: The frame's. An absolute path begins at the root of the cell.
        payload: The bytes to write.
        folder: The start of relative paths.
        uid: The program's user; None is this process's own.
        owns_root: False if the cell sees the host's own root; absolute paths are
            refused then.
    """
    path = header["path"]
    try:
        if owns_root:
            folder, path = place_of(path, folder)
            header = {**header, "path": path}
        with acting_as(uid):
            return _OPERATIONS[header["op"]](header, payload, folder)
    except FileProblem as problem:
        return {"error": str(problem), "reason": problem.reason}, b""
    except OSError as error:
        why = os.strerror(error.errno or 0)
        return {"error": why, "reason": reason_of(error)}, b""


def place_of(path: str, folder: str) -> tuple[str, str]:
    """Return the folder where a path starts, and the path below it.

    Args:
        path: Below `folder`; an absolute one begins at the root of the cell.
        folder: The start of relative paths.

    Raises:
        FileProblem: It leads to the kernel's own files.
    """
    if not path.startswith("/"):
        return folder, path
    if path.split("/")[1] in _KERNEL_FOLDERS:
        raise FileProblem("the kernel's own files are not served", "denied")
    return "/", path[1:]


def holds(folder: str, name: str, uid: int | None) -> bool:
    """Return True if there is an entry of this name; change the user only if needed."""
    path = f"{folder}/{name}"
    try:
        os.lstat(path)
        return True
    except FileNotFoundError:
        return False
    except OSError:
        pass
    with acting_as(uid):
        return os.path.lexists(path)


def _write(
    header: dict[str, Any], payload: bytes, folder: str
) -> tuple[dict[str, Any], bytes]:
    offset = header["offset"]
    flags = os.O_WRONLY | os.O_CREAT | (0 if offset else os.O_TRUNC)
    os.close(make_folders(folder, steps_of(header["path"])[:-1]))
    with opened(folder, header["path"], flags) as fd:
        view = memoryview(payload)
        while view:
            done = os.pwrite(fd, view, offset)
            view, offset = view[done:], offset + done
        if "executable" in header:
            os.fchmod(fd, 0o755 if header["executable"] else 0o644)
    return {}, b""


def _mkdir(
    header: dict[str, Any], _: bytes, folder: str
) -> tuple[dict[str, Any], bytes]:
    os.close(make_folders(folder, steps_of(header["path"])))
    return {}, b""


def _make_link(
    header: dict[str, Any], _: bytes, folder: str
) -> tuple[dict[str, Any], bytes]:
    *parents, name = steps_of(header["path"])
    parent = make_folders(folder, parents)
    try:
        os.symlink(header["target"], name, dir_fd=parent)
    finally:
        os.close(parent)
    return {}, b""


def _read_link(
    header: dict[str, Any], _: bytes, folder: str
) -> tuple[dict[str, Any], bytes]:
    *parents, name = steps_of(header["path"])
    parent = open_folder(folder, parents)
    try:
        return {}, os.fsencode(os.readlink(name, dir_fd=parent))
    finally:
        os.close(parent)


def _read(
    header: dict[str, Any], _: bytes, folder: str
) -> tuple[dict[str, Any], bytes]:
    with opened(folder, header["path"], os.O_RDONLY) as fd:
        found = os.fstat(fd)
        data = os.pread(fd, header["size"], header["offset"])
        inode = "%d:%d" % (found.st_dev, found.st_ino) if found.st_nlink > 1 else ""
        answer = {
            "total": found.st_size,
            "executable": bool(found.st_mode & stat.S_IXUSR),
            "inode": inode,
        }
        return answer, data


def _list(
    header: dict[str, Any], _: bytes, folder: str
) -> tuple[dict[str, Any], bytes]:
    parts = steps_of(header["path"]) if header["path"] else []
    until = time.monotonic() + _LIST_SECONDS
    tree = Tree(folder, parts, until, LeftOut(), lambda found: found.st_size)
    if not tree.whole:
        raise FileProblem(f"more than {MAX_LISTED} files", "too_many")
    # In lines of bounded size, which the host parses one by one.
    pieces = (
        tree.found[start : start + _ENTRIES_AT_ONCE]
        for start in range(0, len(tree.found), _ENTRIES_AT_ONCE)
    )
    return {}, b"\n".join(map(_json, pieces))


def _json(entries: list[tuple[int, str, str, Any]]) -> bytes:
    return json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()


def _remove(
    header: dict[str, Any], _: bytes, folder: str
) -> tuple[dict[str, Any], bytes]:
    *parents, name = steps_of(header["path"])
    parent = open_folder(folder, parents)
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            if not _empty(inside(parent, name)):
                return {"more": True}, b""
            os.rmdir(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    finally:
        os.close(parent)
    return {}, b""


def _empty(fd: int) -> bool:
    """Remove the contents of an open folder and close it.

    One folder is open at a time. The parent is checked on the way back, as the program
    may move folders meanwhile.

    Returns:
        True if nothing is left, False if the time was over.
    """
    clock = _Clock()
    above: list[tuple[int, int]] = []
    try:
        while True:
            clock.check()
            inner = _sweep(fd, clock)
            if inner is not None and len(above) >= _MAX_EMPTIED_DEPTH:
                why = f"deeper than {_MAX_EMPTIED_DEPTH} folders"
                raise FileProblem(why, "too_many")
            if inner is not None:
                above.append(_identity(fd))
                following = inside(fd, inner)
            elif above:
                following = _back(fd, above.pop())
            else:
                return True
            fd, done = following, fd
            os.close(done)
    except TimeoutError:
        return False
    finally:
        os.close(fd)


class _Clock:
    """The time that a request may take, from its first removal on."""

    def __init__(self) -> None:
        self._until = float("inf")

    def begin(self) -> None:
        """Count from now on, unless it has begun."""
        self._until = min(self._until, time.monotonic() + _REMOVE_SECONDS)

    def check(self) -> None:
        """Raise TimeoutError if the time is over."""
        if time.monotonic() > self._until:
            raise TimeoutError


def _sweep(fd: int, clock: _Clock) -> str | None:
    """Remove a folder's entries; return the name of the first non-empty folder.

    Raises:
        TimeoutError: The time is over.
    """
    with os.scandir(fd) as entries:
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    os.rmdir(entry.name, dir_fd=fd)
                else:
                    os.unlink(entry.name, dir_fd=fd)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return entry.name
            clock.begin()
            clock.check()
    return None


def _back(fd: int, above: tuple[int, int]) -> int:
    """Open the parent of an open folder, if it is still the same folder."""
    outer = os.open("..", DIRECTORY, dir_fd=fd)
    if _identity(outer) != above:
        os.close(outer)
        raise FileProblem("folders were moved meanwhile", "busy")
    return outer


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


_OPERATIONS = {
    "write": _write,
    "mkdir": _mkdir,
    "make_link": _make_link,
    "read_link": _read_link,
    "read": _read,
    "list": _list,
    "remove": _remove,
}
