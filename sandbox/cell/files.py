"""Files of the work dir, for the host: never through a link, never out, never waiting.

The supervisor does this itself, as the program's user, so it can do no more with
files than the program could. Each step of a path is opened on its own, without
following links; what is no regular file is never read or written. Whatever a program
has made of its folders, looking through them takes bounded time and memory.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from contextlib import contextmanager

from .live import BRANCHES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAX_DEPTH = 64
_MAX_PATH_BYTES = 4096
# To empty a folder; one that is deeper keeps its lower part.
_MAX_EMPTIED_DEPTH = 10_000
# The host waits for 60.
_PATIENCE_SECONDS = 30.0
_MAX_NAMED = 100
_MAX_NAMED_BYTES = 16 * 1024

ARTIFACTS = "artifacts"
MAX_LISTED = 10_000
"""Entries below a folder that are looked at. When it is reached a listing is refused,
and artifacts are taken of those that were seen."""


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


def holds(folder: str, name: str, uid: int | None) -> bool:
    """Tell whether there is something of this name; as another user only if need be."""
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
    until = time.monotonic() + _PATIENCE_SECONDS
    tree = Tree(folder, parts, until, LeftOut(), sizes=True)
    if not tree.whole:
        raise FileProblem(f"more than {MAX_LISTED} files")
    text = json.dumps(tree.found, ensure_ascii=False, separators=(",", ":"))
    return {}, text.encode()


def _remove(
    header: dict[str, Any], _: bytes, folder: str
) -> tuple[dict[str, Any], bytes]:
    *parents, name = _parts(header["path"])
    parent = _open_folder(folder, parents)
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            _empty(_inside(parent, name))
            os.rmdir(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    finally:
        os.close(parent)
    return {}, b""


def _empty(fd: int) -> None:
    """Remove all that is in an open folder, however deep, and close it.

    One folder is open at a time. The way back is checked, for the program may move
    folders meanwhile.
    """
    until = time.monotonic() + _PATIENCE_SECONDS
    above: list[tuple[int, int]] = []
    try:
        while True:
            inner = _sweep(fd, until)
            if inner is not None and len(above) >= _MAX_EMPTIED_DEPTH:
                raise FileProblem(f"deeper than {_MAX_EMPTIED_DEPTH} folders")
            if inner is not None:
                above.append(_identity(fd))
                following = _inside(fd, inner)
            elif above:
                following = _back(fd, above.pop())
            else:
                return
            fd, done = following, fd
            os.close(done)
    finally:
        os.close(fd)


def _sweep(fd: int, until: float) -> str | None:
    """Remove what is in a folder; stop at a folder that is not empty: its name."""
    with os.scandir(fd) as entries:
        for entry in entries:
            if time.monotonic() > until:
                raise FileProblem(f"not removed in {_PATIENCE_SECONDS:g} seconds")
            try:
                if entry.is_dir(follow_symlinks=False):
                    os.rmdir(entry.name, dir_fd=fd)
                else:
                    os.unlink(entry.name, dir_fd=fd)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return entry.name
    return None


def _back(fd: int, above: tuple[int, int]) -> int:
    """Open the folder around an open one, if it is still the one that it was."""
    outer = os.open("..", _DIRECTORY, dir_fd=fd)
    if _identity(outer) != above:
        os.close(outer)
        raise FileProblem("folders were moved meanwhile")
    return outer


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


_OPERATIONS = {"write": _write, "read": _read, "list": _list, "remove": _remove}


def _parts(path: str) -> list[str]:
    parts = path.split("/")
    if len(parts) > _MAX_DEPTH or any(each in ("", ".", "..") for each in parts):
        raise FileProblem("not a path inside the work dir")
    return parts


def _open_folder(folder: str, parts: list[str]) -> int:
    fd = _open_top(folder)
    for part in parts:
        fd = _step(fd, part)
    return fd


def _open_top(folder: str) -> int:
    """Open a work dir; a branch's by steps, which the program could replace."""
    if not folder.startswith(BRANCHES + "/"):
        return os.open(folder, _DIRECTORY)
    _, root, *steps = folder.split("/")
    fd = os.open("/" + root, _DIRECTORY)
    for step in steps:
        fd = _step(fd, step)
    return fd


def _make_parents(folder: str, path: str) -> None:
    fd = _open_top(folder)
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
        return _inside(fd, part)
    finally:
        os.close(fd)


def _inside(fd: int, part: str) -> int:
    """Open a folder that is in an open one."""
    inner = os.open(part, _DIRECTORY, dir_fd=fd)
    try:
        # gVisor follows links here, O_NOFOLLOW or not.
        named = os.stat(part, dir_fd=fd, follow_symlinks=False)
        if not os.path.samestat(named, os.fstat(inner)):
            raise FileProblem("there is a link on the way")
    except BaseException:
        os.close(inner)
        raise
    return inner


@contextmanager
def _opened(folder: str, path: str, flags: int) -> Iterator[int]:
    fd = open_file(folder, path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def open_file(folder: str, path: str, flags: int) -> int:
    """Open a regular file below a work dir.

    Raises:
        OSError: It cannot be opened.
        FileProblem: It is no regular file, or there is a link on the way.
    """
    *parents, name = _parts(path)
    parent = _open_folder(folder, parents)
    try:
        fd = os.open(name, flags | _PLAIN, 0o644, dir_fd=parent)
    finally:
        os.close(parent)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileProblem("not a regular file")
    return fd


class LeftOut:
    """Names of what was left out, as text, cut to what is worth telling."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._room = _MAX_NAMED_BYTES

    def add(self, name: str) -> None:
        """Add a name; bytes that are not UTF-8 are shown as `\\xff`."""
        text = os.fsencode(name).decode("utf-8", "backslashreplace")
        self._room -= len(text.encode())
        if self._room >= 0 and len(self.names) < _MAX_NAMED:
            self.names.append(text)


class Tree:
    """What is below a folder, as far as the bounds allow.

    Names that are not UTF-8, and what is deeper or longer than a path of the host may
    be, are left out.

    Args:
        folder: A work dir.
        parts: The steps from there to where to look.
        until: When to stop looking, by `time.monotonic`.
        left: Is told what was left out.
        sizes: Whether sizes are wanted; each costs a call.

    Raises:
        OSError: The folder cannot be looked through.
        FileProblem: There is a link on the way to it.
    """

    def __init__(
        self,
        folder: str,
        parts: list[str],
        until: float,
        left: LeftOut,
        *,
        sizes: bool,
    ) -> None:
        self.found: list[tuple[int, str, str, int]] = []
        """Of each entry the number of its folder, name, kind, and size in bytes.
        Entries count from 1; 0 is the folder itself."""
        self.whole = True
        """Whether neither time nor entries ran out."""
        self._folder = folder
        self._parts = parts
        self._until = until
        self._left = left
        self._sizes = sizes
        self._seen = 0
        self._look_into(0)
        # Grows as folders are found.
        for number, (_, _, kind, _) in enumerate(self.found, 1):
            if kind == "folder" and self.whole:
                try:
                    self._look_into(number)
                except (OSError, FileProblem):
                    # Gone, or something else by now.
                    continue

    def path(self, number: int) -> str:
        """Return the path of an entry below the folder."""
        return "/".join(self._steps(number))

    def _steps(self, number: int) -> list[str]:
        steps = []
        while number:
            number, name, _, _ = self.found[number - 1]
            steps.append(name)
        return steps[::-1]

    def _look_into(self, number: int) -> None:
        steps = [*self._parts, *self._steps(number)]
        if len(steps) >= _MAX_DEPTH:
            self._left.add(self.path(number) + "/")
            return
        room = _MAX_PATH_BYTES - sum(len(step.encode()) for step in steps)
        fd = _open_folder(self._folder, steps)
        try:
            # gVisor names some twice while others come and go.
            entries = {name: (kind, size) for name, kind, size in self._entries(fd)}
        finally:
            os.close(fd)
        for name, (kind, size) in sorted(entries.items()):
            if len(os.fsencode(name)) > room or not _is_text(name):
                self._left.add("/".join([*self._steps(number), name]))
            else:
                self.found.append((number, name, kind, size))

    def _entries(self, fd: int) -> Iterator[tuple[str, str, int]]:
        with os.scandir(fd) as entries:
            for entry in entries:
                self._seen += 1
                if self._seen > MAX_LISTED or time.monotonic() > self._until:
                    self.whole = False
                    return
                try:
                    size = self._size(entry)
                    yield entry.name, _kind(entry), size
                except OSError:
                    continue

    def _size(self, entry: os.DirEntry[str]) -> int:
        return entry.stat(follow_symlinks=False).st_size if self._sizes else 0


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"
