"""Opens paths in the work dir step by step, never through a link and never outside.

The supervisor opens files as the program's user, so it can do no more with them than
the program could. Each step of a path is opened on its own, without following links.
Only regular files are read and written.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager

from ..wire.contract import BRANCHES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
MAX_DEPTH = 64


class FileProblem(Exception):
    """A file request that cannot be carried out.

    Args:
        message: The problem, as text for the host's caller.
        reason: The problem, as one of a closed set of identifiers.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@contextmanager
def acting_as(uid: int | None) -> Iterator[None]:
    """Become another user for the time of a `with` block; None changes nothing."""
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
    """Return the parent death signal, which a change of user resets."""
    try:
        from ..kernel import linux

        return linux.parent_death_signal()
    except (ImportError, OSError):
        return None


def _tie(ties: int | None) -> None:
    if ties is None:
        return
    from ..kernel import linux

    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.prctl(linux.PR_SET_PDEATHSIG, ties)


def steps_of(path: str) -> list[str]:
    """Return the names in a path. Raises FileProblem if it may lead outside."""
    parts = path.split("/")
    if len(parts) > MAX_DEPTH or any(part in ("", ".", "..") for part in parts):
        raise FileProblem("not a path inside the work dir", "invalid_path")
    return parts


def open_folder(folder: str, parts: list[str]) -> int:
    """Open a folder below a work dir. Raises OSError, or FileProblem at a link."""
    fd = _open_top(folder)
    for part in parts:
        fd = _step(fd, part)
    return fd


def _open_top(folder: str) -> int:
    """Open a work dir. A branch's is opened by steps: the program may replace them."""
    tmp, branch, number = folder.rpartition(f"/{BRANCHES}/")
    fd = os.open(tmp if branch else folder, DIRECTORY)
    for step in (BRANCHES, number) if branch else ():
        fd = _step(fd, step)
    return fd


def make_folders(folder: str, parts: list[str]) -> int:
    """Open a folder, after making it and its parents where they are missing."""
    fd = _open_top(folder)
    for part in parts:
        try:
            os.mkdir(part, dir_fd=fd)
        except FileExistsError:
            pass
        except OSError:
            os.close(fd)
            raise
        fd = _step(fd, part)
    return fd


def _step(fd: int, part: str) -> int:
    """Open a folder inside an open one, and close the outer one."""
    try:
        return inside(fd, part)
    finally:
        os.close(fd)


def inside(fd: int, part: str) -> int:
    """Open a folder inside an open one. Raises OSError, or FileProblem at a link."""
    inner = os.open(part, DIRECTORY, dir_fd=fd)
    try:
        # gVisor follows links here in spite of O_NOFOLLOW.
        named = os.stat(part, dir_fd=fd, follow_symlinks=False)
        if not os.path.samestat(named, os.fstat(inner)):
            raise FileProblem("there is a link on the way", "link")
    except BaseException:
        os.close(inner)
        raise
    return inner


@contextmanager
def opened(folder: str, path: str, flags: int) -> Iterator[int]:
    """Open a regular file below a work dir for the time of a `with` block."""
    fd = open_file(folder, path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def open_file(folder: str, path: str, flags: int) -> int:
    """Open a regular file below a work dir.

    Raises:
        OSError: It cannot be opened.
        FileProblem: It is not a regular file, or a step of its path is a link.
    """
    *parents, name = steps_of(path)
    parent = open_folder(folder, parents)
    try:
        fd = os.open(name, flags | _PLAIN, 0o644, dir_fd=parent)
    finally:
        os.close(parent)
    kind = os.fstat(fd).st_mode
    if not stat.S_ISREG(kind):
        os.close(fd)
        reason = "is_folder" if stat.S_ISDIR(kind) else "not_regular"
        raise FileProblem("not a regular file", reason)
    return fd
