"""Shares of a cell in the accounts that the kernel keeps by user.

Pending signals, timers, bytes of POSIX queues and of locked memory are charged, since
Linux 5.14, to the user in the cell's namespace and also to the user that made the
namespace. The limits of a process bound the first count; those that the maker had when
it made the namespace bound the second.
"""

from __future__ import annotations

import contextlib
import os
import resource

from . import linux

# Shares of one cell: where each cell is made by its own user, and where one user
# makes all of them.
_OF_ITS_OWN = {
    resource.RLIMIT_SIGPENDING: 4096,
    resource.RLIMIT_MSGQUEUE: 512 * 1024,
    resource.RLIMIT_MEMLOCK: 64 * 1024,
}
_OF_ONE_USER = {
    resource.RLIMIT_SIGPENDING: 1024,
    # One queue of the kernel's default size.
    resource.RLIMIT_MSGQUEUE: 96 * 1024,
    resource.RLIMIT_MEMLOCK: 64 * 1024,
}


class Shares:
    """Makes cells so that none can use up another's share of these accounts.

    Args:
        own_users: True if each cell has its own uids.
    """

    def __init__(self, own_users: bool) -> None:
        self._apart = own_users and _may_become_others()
        if not self._apart:
            _leave_half()

    def clone(self, flags: int, uid: int) -> int:
        """Clone into new namespaces, made by the first user of the new cell.

        Raises:
            OSError: The kernel refused one of the namespaces.
        """
        if not self._apart:
            return linux.clone(flags)
        pid = -1
        os.seteuid(uid)
        try:
            pid = linux.clone(flags)
        finally:
            if pid != 0:
                os.seteuid(0)
                # A process that changed its user cannot open its own files in /proc.
                linux.prctl(linux.PR_SET_DUMPABLE, 1)
        return pid

    def limit(self) -> None:
        """Lower the limits of the calling process, the first one of a new cell."""
        for kind, maximum in (_OF_ITS_OWN if self._apart else _OF_ONE_USER).items():
            _lower(kind, maximum)


def _may_become_others() -> bool:
    """Keep capabilities across changes of the effective user; True if they stay."""
    try:
        linux.prctl(linux.PR_SET_SECUREBITS, linux.SECBIT_NO_SETUID_FIXUP)
    except OSError:
        return False
    return True


def _leave_half() -> None:
    """Halve the hard limits, so that the user's other processes have the other half."""
    for kind in _OF_ONE_USER:
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            _lower(kind, hard // 2)


def _lower(kind: int, maximum: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard == resource.RLIM_INFINITY or hard > maximum:
        # gVisor refuses limits of accounts that it does not keep.
        with contextlib.suppress(ValueError):
            resource.setrlimit(kind, (maximum, maximum))
