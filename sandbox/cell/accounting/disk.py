"""The files of a cell whose folders are the machine's: measured again and again.

No file system of its own bounds them there. One file cannot be larger than all may be
together, by a limit of each process; how much all are is seen here.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time

from ..wire.contract import OWN_USER
from .looks import Pace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What an entry counts at least, so that a cell has 256 files for each MiB.
_LEAST_BYTES = 4096
# What may lie beside a file that is as large as one can be, reported by itself.
_BESIDE_BYTES = 1 << 20
# Interpreters of a session that nobody uses are looked at seldom: it costs CPU time.
_LATER_AT_REST = 1.0
_MAX_DEPTH = 100
_SHARED_MEMORY = "/dev/shm"
_BLOCK = 512
_FOLDER = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


def watch(settings: dict[str, Any]) -> DiskWatch | None:
    """Return the watch of a cell; None where its file systems have their own bounds."""
    if not settings["confined"]:
        return None
    folders = [settings["workdir"], settings["tmp"]]
    own = settings["confined"] == OWN_USER
    return DiskWatch(folders, settings["disk_mib"], settings["uid"] if own else None)


def used(folder: str) -> int:
    """Return the bytes that are used on the file system of a folder."""
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


class DiskWatch:
    """Looks whether a folder of a cell holds too much.

    Args:
        folders: The folders that programs can write to; each may hold as much.
        disk_mib: What one may hold, in MiB.
        uid: The programs' user, if nobody else has it: what it has in shared memory
            counts, too.
    """

    def __init__(self, folders: list[str], disk_mib: int, uid: int | None) -> None:
        self._folders = folders
        self._uid = uid
        self._limit = self._allowed = disk_mib << 20
        self._most = sys.maxsize
        self.is_full = False
        """True if the last look found too much, and none has begun anew."""

        self._pace = Pace()
        self._told, self._pace_of_told = 0, Pace(least_seconds=0.0)

    def begin(self) -> None:
        """Begin anew. What filled a folder before may stay, and cannot grow.

        It takes a look to see that it does, so each time it may grow a little: by as
        much as the limit in all.
        """
        filled = self.is_full or self._allowed > self._limit
        used = self._used() if filled else 0
        self._allowed = max(used, self._limit)
        grown = min(self._most, used + self._limit)
        self._most = grown if used > self._limit else sys.maxsize
        self.is_full = False

    @property
    def is_lost(self) -> bool:
        """True if a folder was full, and has grown all the same by too much."""
        return self._allowed > self._most

    def due_in(self, *, at_rest: bool = False) -> float:
        """Return the seconds until the next look.

        Args:
            at_rest: True while there are no programs but interpreters between runs.
        """
        return self._pace.due_in(_LATER_AT_REST if at_rest else 0.0)

    def exceeded(self, *, at_rest: bool = False) -> bool:
        """Look, if it is time for that; True if a folder holds too much."""
        if self.due_in(at_rest=at_rest) > 0:
            return False
        began = time.monotonic()
        self.is_full = self._used() > min(self._allowed + _BESIDE_BYTES, self._most)
        self._pace.looked(began)
        return self.is_full

    def has_room(self, size: int) -> bool:
        """Return True if a file of so many bytes may be written."""
        return self._used() + size <= self._limit

    def fits(self, source: int, target: str) -> bool:
        """Return True if a copy of a folder fits into another; close the open one."""
        folders = source, os.open(target, _FOLDER)
        return sum(_measured(each, 0) for each in folders) <= self._limit

    def used(self) -> int:
        """Return the bytes of the work dir, those of before if they take long to count.

        A session is asked for them each second.
        """
        if self._pace_of_told.due_in() <= 0:
            began = time.monotonic()
            self._told = _measured(os.open(self._folders[0], _FOLDER), 0)
            self._pace_of_told.looked(began)
        return self._told

    def _used(self) -> int:
        """Return the bytes of the fullest folder."""
        used = [_measured(os.open(path, _FOLDER), 0) for path in self._folders]
        if self._uid is not None:
            used.append(_shared_memory(self._uid))
        return max(used)


def _measured(folder: int, depth: int) -> int:
    """Measure an open folder step by step, so never through a link; close it."""
    total = 0 if depth < _MAX_DEPTH else sys.maxsize
    mode = _opened_up(folder)
    try:
        for name, found in _entries(folder):
            total += max(found.st_blocks * _BLOCK, _LEAST_BYTES)
            if stat.S_ISDIR(found.st_mode) and depth < _MAX_DEPTH:
                with contextlib.suppress(OSError):
                    inner = os.open(name, _FOLDER, dir_fd=folder)
                    total += _measured(inner, depth + 1)
    finally:
        if mode is not None:
            os.chmod(f"/proc/self/fd/{folder}", mode)
        os.close(folder)
    return total


def _opened_up(folder: int) -> int | None:
    """Let this process list a folder; return its mode if that was another."""
    itself = f"/proc/self/fd/{folder}"
    if os.access(itself, os.R_OK | os.X_OK):
        return None
    mode = stat.S_IMODE(os.fstat(folder).st_mode)
    with contextlib.suppress(OSError):
        os.chmod(itself, 0o700)
    return mode


def _shared_memory(uid: int) -> int:
    if not os.path.isdir(_SHARED_MEMORY):
        return 0
    folder = os.open(_SHARED_MEMORY, _FOLDER)
    try:
        own = [found for _, found in _entries(folder) if found.st_uid == uid]
    finally:
        os.close(folder)
    return sum(found.st_blocks for found in own) * _BLOCK


def _entries(folder: int) -> list[tuple[str, os.stat_result]]:
    """Return the entries of a folder."""
    found = []
    try:
        with os.scandir(f"/proc/self/fd/{folder}") as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found.append((entry.name, entry.stat(follow_symlinks=False)))
    except OSError:
        return []
    return found
