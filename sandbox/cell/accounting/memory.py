"""Counts the memory of a cell's processes where no cgroup does.

Theory of operation. Three looks, each dearer and more exact than the one before, and
the next one is taken only if this one is above the limit. First the resident size of
each process and the files that lie in memory: more than is used, as processes share
pages. Then each page in proportion to the number of its users. Then less what is both
mapped and a file. A kernel that serves one cell alone has the sum at hand.
"""

from __future__ import annotations

import os
import re
import time

from ..kernel.process_tree import stat_of
from ..workdir.path_steps import acting_as
from .hiding import Hiding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Collection, Iterable, Protocol

    class Memory(Protocol):
        """Counts the bytes in use; exact where they are more than a limit."""

        def begin(self) -> None: ...
        def count(self, limit: int) -> int: ...


_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_MAX_READ = 65_536
# From proc(5): range, permissions, offset, device, inode and path of a mapping.
_MAPPING = re.compile(
    rb"[0-9a-f]+-[0-9a-f]+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+) *(.*)"
)
# Of the time that passes, what may go into looks through descriptors; and the seconds
# after which there is one in any case.
_SHARE_OF_FILES = 0.05
_FILES_AT_LEAST_SECONDS = 0.2
# A process that hides its files may have any number of them.
_HIDDEN, _MORE_THAN_ANY_LIMIT = (0, 0), 1 << 62


class ProcessMemory:
    """The memory of some processes, and of files that live in memory.

    What only the kernel holds is not counted: pipes, sockets, page tables.

    Args:
        processes: Returns their pids.
        folders: File systems in memory that only they use.
        uid: The user that may look at what these processes have mapped and open, if
            this one's may not; else None.
    """

    def __init__(
        self,
        processes: Callable[[], list[str]],
        folders: Iterable[str],
        uid: int | None,
    ) -> None:
        self._processes = processes
        self._uid = uid
        self._folders = [path for path in folders if os.path.isdir(path)]
        self._device = _device_of_memory_files()
        # By device and inode: files that processes have open, and that have no name.
        self._unnamed: dict[tuple[int, int], int] = {}
        self._hiding = Hiding()
        self._next_unnamed = 0.0

    def begin(self) -> None:
        """Begin a count."""
        self._unnamed, self._next_unnamed = {}, 0.0

    def count(self, limit: int) -> int:
        """Return the bytes in use: exact where they are more than `limit`."""
        resident = {pid: resident_bytes(pid) for pid in self._processes()}
        files = self._file_bytes(resident)
        most = sum(resident.values()) + files
        if most <= limit:
            return most
        with acting_as(self._uid):
            total = files + sum(map(_share, resident))
            if total > limit and files:
                return files + sum(map(self._bytes_of_no_file, resident))
        return total

    def _file_bytes(self, pids: Collection[str]) -> int:
        used = 0
        for folder in self._folders:
            disk = os.statvfs(folder)
            used += (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        began = time.monotonic()
        if began >= self._next_unnamed:
            self._unnamed = {}
            self._hiding.forget_all_but(pids)
            with acting_as(self._uid):
                for pid in pids:
                    self._look_for_unnamed(pid)
            ended = time.monotonic()
            pause = (ended - began) / _SHARE_OF_FILES
            self._next_unnamed = ended + min(pause, _FILES_AT_LEAST_SECONDS)
        # Where a cell has no separate folders, such segments are the machine's.
        segments = _system_v_bytes() if self._folders else 0
        return used + sum(self._unnamed.values()) + segments

    def _look_for_unnamed(self, pid: str) -> None:
        folder = f"{_proc_folder(pid)}/fd"
        try:
            numbers = os.listdir(folder)
        except OSError:
            self._count_hidden(pid)
            return
        self._hiding.shows(pid)
        for number in numbers:
            try:
                found = os.stat(f"{folder}/{number}")
            except OSError:
                continue
            if found.st_dev == self._device:
                key = found.st_dev, found.st_ino
                self._unnamed[key] = found.st_blocks * 512

    def _count_hidden(self, pid: str) -> None:
        """Count a process whose files cannot be seen, if it has not just ended."""
        # From proc(5): field 3 is the state, CPU times are 14 and 15.
        fields = stat_of(pid)
        if fields and resident_bytes(pid):
            cpu_seconds = (int(fields[11]) + int(fields[12])) / _TICKS
            asleep = fields[0] != b"R"
            now = time.monotonic()
            if self._hiding.hides(pid, now, cpu_seconds, asleep=asleep):
                self._unnamed[_HIDDEN] = _MORE_THAN_ANY_LIMIT

    def _bytes_of_no_file(self, pid: str) -> int:
        """Return the share of a process, but for what was counted as a file."""
        devices = {os.stat(path).st_dev for path in self._folders}
        total, counted = 0, False
        lines = _lines(f"{_proc_folder(pid)}/smaps")
        if not lines:
            # It hides them, or has ended.
            return resident_bytes(pid)
        for line in lines:
            if line.startswith(b"Pss:"):
                total += 0 if counted else int(line.split()[1]) * 1024
            elif found := _MAPPING.match(line):
                device = os.makedev(int(found[1], 16), int(found[2], 16))
                counted = (
                    device in devices
                    or (device, int(found[3])) in self._unnamed
                    or (device == self._device and found[4].startswith(b"/SYSV"))
                )
        return total


class KernelMemory:
    """The memory of a kernel that serves one cell alone, as gVisor's does."""

    def begin(self) -> None:
        """Do nothing: the kernel counts."""

    def count(self, limit: int) -> int:
        """Return the bytes in use, files in memory included."""
        for line in _lines("/proc/meminfo"):
            if line.startswith(b"AnonPages:"):
                return int(line.split()[1]) * 1024
        return 0


def resident_bytes(pid: str) -> int:
    """Return the resident size of a process; 0 if there is none."""
    return _resident_bytes(f"/proc/{pid}") or _resident_bytes(_proc_folder(pid))


def _resident_bytes(folder: str) -> int:
    fields = _read(f"{folder}/statm").split()
    return int(fields[1]) * _PAGE if fields else 0


def _proc_folder(pid: str) -> str:
    """Return the folder of /proc with the memory and the files of a process.

    Its own one shows those of its first thread: nothing once that has ended.
    """
    folder = f"/proc/{pid}"
    if _resident_bytes(folder):
        return folder
    try:
        threads = [f"{folder}/task/{each}" for each in os.listdir(f"{folder}/task")]
    except OSError:
        # It has ended.
        return folder
    return next(filter(_resident_bytes, threads), folder)


def _share(pid: str) -> int:
    """Return the bytes of a process, shared pages in part where the kernel says so."""
    share = proportional_bytes(pid)
    # Not by gVisor; and not of a process that has ended meanwhile.
    return resident_bytes(pid) if share is None else share


def proportional_bytes(pid: str) -> int | None:
    """Return the size in which each page counts by its users; None if it is unknown."""
    for line in _lines(f"{_proc_folder(pid)}/smaps_rollup"):
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return None


def _device_of_memory_files() -> int:
    """Return the device of files without a name, which all processes share."""
    fd = os.memfd_create("device", os.MFD_CLOEXEC)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


def _system_v_bytes() -> int:
    """Return the memory of the shared segments of this namespace."""
    head, *rows = _read("/proc/sysvipc/shm").splitlines() or [b""]
    column = head.split().index(b"rss") if rows else 0
    return sum(int(row.split()[column]) for row in rows)


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _MAX_READ)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _lines(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            return file.read().splitlines()
    except OSError:
        return []
