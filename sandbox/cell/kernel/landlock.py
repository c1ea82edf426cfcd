"""Landlock: what a process, and all that it starts, may reach beyond itself.

A set of rules names what may be opened, and below which paths; all else is closed. A
process that enters it stays in it, and may enter further ones, which only narrow it.
What is open already stays so. Kernels know it in versions (ABI), each with more rights.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct

from .linux import check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
REMOVE_DIR, REMOVE_FILE = 1 << 4, 1 << 5
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK = 1 << 6, 1 << 7, 1 << 8, 1 << 9
MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = 1 << 10, 1 << 11, 1 << 12
# Since ABI 2, 3 and 5.
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15

READ = READ_FILE | READ_DIR
RUN = READ | EXECUTE
OWN = RUN | WRITE_FILE | TRUNCATE | REFER | REMOVE_DIR | REMOVE_FILE
OWN |= MAKE_DIR | MAKE_REG | MAKE_SOCK | MAKE_FIFO | MAKE_SYM
"""All that a program may do in folders of its cell: no device can be made there."""

_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_HANDLED = ((1, MAKE_SYM * 2 - 1), (2, REFER), (3, TRUNCATE), (5, IOCTL_DEV))
# Abstract sockets, and signals, of processes outside.
_SCOPES = 1 | 2
REFER_SINCE, TRUNCATE_SINCE, SCOPES_SINCE = 2, 3, 6
"""The versions that allow renames between folders, that bound truncation by path, and
that keep signals and abstract sockets inside."""

# In /proc. The network of a process is the machine's here, and so are its mounts.
_OF_A_PROCESS = ("cmdline", "fd", "maps", "stat", "statm", "status")

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1

_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """Return the kernel's version of it. Raises OSError where there is none."""
    return check(_libc.syscall(_CREATE, None, 0, _VERSION), "Landlock")


class Rules:
    """A set of rules, as an open descriptor.

    Args:
        known: The kernel's version.
        scoped: True if signals and abstract sockets stay inside of it, too.

    Raises:
        OSError: The kernel refused.
    """

    def __init__(self, known: int, *, scoped: bool = False) -> None:
        self._handled = sum(rights for since, rights in _HANDLED if known >= since)
        fields = [self._handled]
        if known >= SCOPES_SINCE:
            fields += [0, _SCOPES if scoped else 0]
        packed = struct.pack("=%dQ" % len(fields), *fields)
        self.fd = check(_libc.syscall(_CREATE, packed, len(packed), 0), "Landlock")

    def allow(self, path: int, rights: int) -> None:
        """Allow rights to a file, or to all below a folder. Raises OSError.

        Args:
            path: It, as `opened` returns it.
            rights: Those that apply to it; what this kernel does not know is left out.
        """
        rule = struct.pack("=Qi", rights & self._handled, path)
        number = _libc.syscall(_ADD, self.fd, _PATH_BENEATH, rule, 0)
        check(number, "Landlock")


def opened(path: str, rights: int) -> tuple[int, int] | None:
    """Open a path to make rules about it; None where a machine lacks it.

    Returns:
        The descriptor, and those of the rights that apply to a path of its kind.
    """
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
    return fd, rights if is_folder else rights & _OF_FILES


def of_program(paths: Iterable[tuple[int, int]]) -> Rules:
    """Return rules of this process alone: it may read its own files in /proc, too.

    Args:
        paths: As `opened` returns each.

    Raises:
        OSError: The kernel refused.
    """
    rules = Rules(version())
    own = _own_files("self")
    for path, rights in (*paths, *own):
        rules.allow(path, rights)
    for path, _ in own:
        os.close(path)
    return rules


def files_of(pid: int) -> list[int]:
    """Open what a program may read of itself; nothing where /proc does not show it.

    Whoever has them open keeps the rules about them: where memory is short the kernel
    forgets files of /proc that nobody has open, and rules do not hold for later ones.
    """
    return [path for path, _ in _own_files(pid)]


def _own_files(pid: int | str) -> list[tuple[int, int]]:
    found = (opened(f"/proc/{pid}/{name}", READ) for name in _OF_A_PROCESS)
    return [each for each in found if each is not None]


class Reach:
    """Paths that processes may reach: those that stay are opened once for all rules.

    Args:
        paths: Each with the rights there; what a machine lacks is left out.
        anew: Those of the paths where something else is mounted before rules are made.

    Raises:
        OSError: The kernel has no Landlock.
    """

    def __init__(self, paths: list[tuple[str, int]], anew: Iterable[str]) -> None:
        self._version = version()
        changing = set(map(os.path.realpath, anew))
        self._anew = [(path, rights) for path, rights in paths if path in changing]
        self._lasting = [
            found
            for path, rights in paths
            if path not in changing and (found := opened(path, rights)) is not None
        ]

    def rules(self, *, scoped: bool = False) -> Rules:
        """Return rules of what is there now; `scoped` as of `Rules`.

        Raises:
            OSError: The kernel refused.
        """
        rules = Rules(self._version, scoped=scoped)
        for fd, rights in self._lasting:
            rules.allow(fd, rights)
        for path, rights in self._anew:
            found = opened(path, rights)
            if found is not None:
                rules.allow(*found)
                os.close(found[0])
        return rules


def enter(fd: int) -> None:
    """Enter rules for good; it needs no_new_privs. Raises OSError."""
    check(_libc.syscall(_RESTRICT, fd, 0), "Landlock")
