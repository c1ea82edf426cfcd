"""What a cell may take of the accounts that the kernel keeps by user.

Signals that wait, timers, bytes of POSIX queues and of locked memory count, since
Linux 5.14, for the user in a cell's namespace and for who made that namespace, too. A
process's limits bound the first count; the maker's, at that time, bound the second.
"""

from __future__ import annotations

import os
import resource

from . import linux

# What one cell may take: where each is made by a user of its own, and where one user
# makes them all.
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
    """How cells are made, so that none takes another's share of these accounts.

    Args:
        own_users: Whether each cell has uids of its own.
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
                # Who changes its user cannot open its own files in /proc.
                linux.prctl(linux.PR_SET_DUMPABLE, 1)
        return pid

    def limit(self) -> None:
        """Bound what the calling process, of a new cell, may take."""
        for kind, maximum in (_OF_ITS_OWN if self._apart else _OF_ONE_USER).items():
            _lower(kind, maximum)


def _may_become_others() -> bool:
    """Keep capabilities over changes of the effective user; tell whether they stay."""
    try:
        linux.prctl(linux.PR_SET_SECUREBITS, linux.SECBIT_NO_SETUID_FIXUP)
    except OSError:
        return False
    return True


def _leave_half() -> None:
    """Leave half of what one user may have to that user's other processes."""
    for kind in _OF_ONE_USER:
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            _lower(kind, hard // 2)


def _lower(kind: int, maximum: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard == resource.RLIM_INFINITY or hard > maximum:
        resource.setrlimit(kind, (maximum, maximum))
