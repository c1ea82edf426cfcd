"""What `confined` programs may not call: they have no namespaces of their own.

The network, System V objects, queues, process numbers and file systems are the
machine's there. Landlock closes files; the rules here close what it does not know.
"""

from __future__ import annotations

from .bpf import EPERM, outside, rule, within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .bpf import SyscallRule

_UNIX, _IPV4, _IPV6 = 1, 2, 10
_STREAM, _DATAGRAM, _RAW, _TYPE_MASK = 1, 2, 3, 0xF
_EOPNOTSUPP, _EAFNOSUPPORT = 95, 97
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

# A group of requests of file systems, and those of it that only tell. The others change
# files through descriptors that can only be read.
_FILE_REQUESTS = (
    # FS_IOC_GETFLAGS, FS_IOC_FIEMAP
    (0x6600, (0x8008_6601, 0x8004_6601, 0xC020_660B)),
    # FS_IOC_FSGETXATTR
    (0x5800, (0x801C_581F,)),
    # FS_IOC_GETVERSION
    (0x7600, (0x8008_7601, 0x8004_7601)),
    # FICLONE, FICLONERANGE, which take a file that can be written
    (0x9400, (0x4004_9409, 0x4020_940D)),
)

RULES: tuple[SyscallRule, ...] = (
    # Nobody else's priority.
    rule("setpriority", EPERM, outside(0, _PRIO_PROCESS)),
    rule("setpriority", EPERM, outside(1, 0)),
    # No way to servers of the machine, nor to be one.
    rule("socket", _EAFNOSUPPORT, within(0, _UNIX, _IPV4, _IPV6)),
    # A socket without a peer could be given one.
    rule("socketpair", _EOPNOTSUPP, within(1, _DATAGRAM, _RAW, mask=_TYPE_MASK)),
    *(
        rule("ioctl", EPERM, within(1, group, mask=_GROUP), outside(1, *telling))
        for group, telling in _FILE_REQUESTS
    ),
)
"""Exceptions to the list that come before the usual ones."""

_ATTRIBUTES = (
    *("chmod", "fchmod", "fchmodat", "fchmodat2"),
    *("chown", "fchown", "fchownat", "lchown"),
    *("utime", "utimes", "utimensat", "futimesat"),
    *("setxattr", "lsetxattr", "fsetxattr", "setxattrat"),
    *("removexattr", "lremovexattr", "fremovexattr", "removexattrat"),
)
SHARED_CLOSED = (
    *_ATTRIBUTES,
    *("rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal"),
)
"""Calls that reach files and processes of the machine's user, where programs have the
same. Landlock does not know attributes of files."""


def shared_rules(supervisor: int) -> tuple[SyscallRule, ...]:
    """Return rules for programs whose supervisor has the same user.

    Args:
        supervisor: It; it leads a process group.
    """
    apart = (supervisor, _ALL + 1 - supervisor)
    return (
        # All processes; for a program its supervisor is among them.
        rule("kill", EPERM, within(0, *apart, _ALL)),
        rule("tkill", EPERM, within(0, supervisor)),
        rule("tgkill", EPERM, within(0, supervisor)),
        # The signals of descriptors.
        rule("fcntl", EPERM, within(1, _F_SETSIG, _F_SETOWN_EX)),
        rule("fcntl", EPERM, within(1, _F_SETOWN), within(2, *apart)),
        rule("ioctl", EPERM, within(1, _FIOSETOWN, _SIOCSPGRP)),
    )
