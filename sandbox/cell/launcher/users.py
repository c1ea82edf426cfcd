"""Users of the host that cells run as: two of their own for root's cells, else one."""

from __future__ import annotations

import contextlib
import os

from ..kernel import linux
from .refused import making_namespaces

_FIRST_UID = 1_900_000_000
# This many cells at once have their own uids.
_SLOTS = 512


class CellUsers:
    """Hands out uids, and maps them into the user namespaces of cells.

    It moves this process into a mount namespace, for which a process without privileges
    needs its own user namespace.

    Args:
        cell_uid: The uid of programs inside every cell.

    Raises:
        WallsRefusedError: The kernel refused the namespace.
        OSError: It made one and refused its users.
    """

    def __init__(self, cell_uid: int) -> None:
        self._cell_uid = cell_uid
        # No two living launchers have the same process number.
        self._base = _FIRST_UID + os.getpid() % 65_536 * 2 * _SLOTS
        self._slots = 0
        self.separate = unshare_mounts()
        """True if each cell has its own two uids; else all are this process's."""

    def next_uid(self) -> int:
        """Return the first of the two host uids of the next cell."""
        self._slots += 1
        return self._base + 2 * (self._slots % _SLOTS)

    def map_ids(self, pid: int, first: int) -> None:
        """Write the id maps of a cell.

        Args:
            pid: Its first process.
            first: The first of its host uids.

        Raises:
            OSError: The kernel refused them.
        """
        if self.separate:
            maps = f"0 {first} 1\n{self._cell_uid} {first + 1} 1"
            _write(f"/proc/{pid}/uid_map", maps)
            _write(f"/proc/{pid}/gid_map", maps)
            return
        _deny_groups(pid)
        _write(f"/proc/{pid}/uid_map", f"{self._cell_uid} {os.geteuid()} 1")
        _write(f"/proc/{pid}/gid_map", f"{self._cell_uid} {os.getegid()} 1")


def unshare_mounts() -> bool:
    """Enter a mount namespace; True if this process may give cells uids.

    Raises:
        WallsRefusedError: The kernel refused it.
        OSError: This process is in one, without a user that it knows.
    """
    if os.geteuid() == 0 and _has_all_users():
        try:
            linux.unshare(linux.CLONE_NEWNS)
            return True
        except OSError:
            pass
    uid, gid = os.geteuid(), os.getegid()
    with making_namespaces():
        linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
    _deny_groups("self")
    try:
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    except OSError as error:
        # So does AppArmor on Ubuntu.
        why = f"unshare: its map of users was refused: {error.strerror}"
        raise OSError(error.errno, why) from None
    return False


def _has_all_users() -> bool:
    """Return False in a user namespace that lacks the uids of cells."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        first, _, count = map(int, file.readline().split())
    return first + count > _FIRST_UID + 65_536 * 2 * _SLOTS


def _deny_groups(process: int | str) -> None:
    """Have the kernel take a map of groups from a user who could set none."""
    # gVisor takes it without; whoever does not says so when the map is written.
    with contextlib.suppress(OSError):
        _write(f"/proc/{process}/setgroups", "deny")


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
