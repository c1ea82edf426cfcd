"""Calls that `confined` programs may not make: they have no namespaces.

The network, System V objects, queues, process numbers and file systems are the
machine's there. Landlock closes files; the rules here close what it does not know.
"""

from __future__ import annotations

from .bpf import EINVAL, EPERM, outside, rule, within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .bpf import SyscallRule

_IPV4, _IPV6 = 2, 10
_STREAM, _TYPE_MASK = 1, 0xF
_EAFNOSUPPORT = 97
_PR_SET_SECCOMP = 22
_PRIO_PROCESS = 0
_ALL = 0xFFFF_FFFF
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
_FIOSETOWN, _SIOCSPGRP = 0x8901, 0x8902
_GROUP = 0xFF00

CLOSED = (
    *("shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semctl", "semtimedop"),
    *("msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink"),
)
"""Calls that name objects of the machine."""

# Requests of file systems by group (f, X, v, of btrfs, of f2fs), and those of a group
# that stay: they only tell, or take a file that can be written (FICLONE). The others
# change files through descriptors that can only be read, such as FS_IOC_SETFLAGS.
_FILE_REQUESTS = (
    # FS_IOC_GETFLAGS, FS_IOC_FIEMAP
    (0x6600, (0x8008_6601, 0x8004_6601, 0xC020_660B)),
    # FS_IOC_FSGETXATTR
    (0x5800, (0x801C_581F,)),
    # FS_IOC_GETVERSION
    (0x7600, (0x8008_7601, 0x8004_7601)),
    # FICLONE, FICLONERANGE
    (0x9400, (0x4004_9409, 0x4020_940D)),
    (0xF500, ()),
)

RULES: tuple[SyscallRule, ...] = (
    # Nobody else's priority.
    rule("setpriority", EPERM, outside(0, _PRIO_PROCESS)),
    rule("setpriority", EPERM, outside(1, 0)),
    # Datagrams would go wherever a program wants, and nobody would see the address.
    rule(
        "socket",
        _EAFNOSUPPORT,
        within(0, _IPV4, _IPV6),
        outside(1, _STREAM, mask=_TYPE_MASK),
    ),
    *(
        rule("ioctl", EPERM, within(1, group, mask=_GROUP), outside(1, *telling))
        for group, telling in _FILE_REQUESTS
    ),
)
"""Exceptions to the list that come before the usual ones."""


def protecting(*keepers: int) -> tuple[SyscallRule, ...]:
    """Return rules that keep signals of programs from processes of their cell.

    Args:
        keepers: Those which may have the programs' user.
    """
    apart = [each for pid in keepers for each in (pid, _ALL + 1 - pid)]
    return (
        # All processes: these would be among them.
        rule("kill", EPERM, within(0, *apart, _ALL)),
        rule("tkill", EPERM, within(0, *keepers)),
        rule("tgkill", EPERM, within(0, *keepers)),
        rule("rt_sigqueueinfo", EPERM, within(0, *apart, _ALL)),
        rule("rt_tgsigqueueinfo", EPERM, within(0, *keepers)),
        # A descriptor of a process does not say which one it is.
        rule("pidfd_send_signal", EPERM),
        # The signals of descriptors.
        rule("fcntl", EPERM, within(1, _F_SETSIG, _F_SETOWN_EX)),
        rule("fcntl", EPERM, within(1, _F_SETOWN), within(2, *apart)),
        rule("ioctl", EPERM, within(1, _FIOSETOWN, _SIOCSPGRP)),
        # No more filters.
        rule("prctl", EINVAL, within(0, _PR_SET_SECCOMP)),
    )
