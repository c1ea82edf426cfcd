"""Seccomp user notification: calls that wait until another process has answered them.

A program puts up a filter as the last step of its confinement. Where the filter says
`NOTIFY` the calling thread sleeps, and whoever has the filter's listener reads the
call, does in its own name what it finds right, and sends the answer. When no process
has the listener any more such calls fail with ENOSYS. `WAIT_KILLABLE_RECV` (Linux 5.19)
keeps signals from interrupting a call that has been read.

Some arguments are memory of the caller, which its other threads change at any time. So
nothing is ever allowed to go on by what was read there: only what the answering process
has itself opened is acted on.
"""

from __future__ import annotations

import collections
import ctypes
import errno
import fcntl
import functools
import os
import socket
import struct

from . import linux, seccomp
from .bpf import ENOSYS, EPERM, NOTIFY, SyscallRule, outside, rule, within
from .calls import allowed_calls
from .descriptors import send_fds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import FrozenSet, Tuple

ATTRIBUTES, SOCKETS, SIGNALS, TRUNCATE = "attributes sockets signals truncate".split()
"""The calls that can be served: owners, modes, times and extended attributes of files;
`connect`, `bind` and `listen`; signals to other processes, which Landlock bounds from
ABI 6 on; and truncation by path, which it bounds from ABI 3 on."""

_NOTIFIED = {
    ATTRIBUTES: "chmod fchmod fchmodat fchmodat2 chown lchown fchown fchownat utime "
    "utimes futimesat utimensat setxattr lsetxattr fsetxattr removexattr lremovexattr "
    "fremovexattr",
    SOCKETS: "connect bind listen",
    SIGNALS: "kill tkill tgkill",
    TRUNCATE: "truncate",
}

_PR_SET_DUMPABLE = 4
_UNIX, _IPV4, _IPV6 = 1, 2, 10
_STREAM, _SEQPACKET, _TYPE_MASK = 1, 5, 0xF
_MSG_FASTOPEN = 0x20000000
_O_TRUNC, _ACCESS_MASK, _WRONLY, _RDWR = 0o1000, 3, 1, 2
_SOL_SOCKET, _REUSEADDR, _REUSEPORT = 1, 2, 15
_ESOCKTNOSUPPORT, _EOPNOTSUPP, _EAFNOSUPPORT = 94, 95, 97

_REFUSED = {
    ATTRIBUTES: (rule("setxattrat", ENOSYS), rule("removexattrat", ENOSYS)),
    SOCKETS: (
        # Datagrams go to an address without `connect`. So does TCP with MSG_FASTOPEN.
        rule(
            "socket",
            _ESOCKTNOSUPPORT,
            within(0, _UNIX),
            outside(1, _STREAM, mask=_TYPE_MASK),
        ),
        rule("sendto", _EOPNOTSUPP, outside(3, 0, mask=_MSG_FASTOPEN)),
        rule("sendmsg", _EOPNOTSUPP, outside(2, 0, mask=_MSG_FASTOPEN)),
        rule("sendmmsg", _EOPNOTSUPP, outside(3, 0, mask=_MSG_FASTOPEN)),
        # Nobody else may get a server's port while the notifier leads programs there.
        rule(
            "setsockopt",
            0,
            within(1, _SOL_SOCKET),
            within(2, _REUSEADDR, _REUSEPORT),
        ),
    ),
    SIGNALS: (
        rule("rt_sigqueueinfo", ENOSYS),
        rule("rt_tgsigqueueinfo", ENOSYS),
        rule("pidfd_send_signal", ENOSYS),
    ),
    TRUNCATE: (
        # Landlock asks for the right to write where the file is opened for writing.
        *(
            rule(
                call,
                EPERM,
                outside(flags, 0, mask=_O_TRUNC),
                outside(flags, _WRONLY, _RDWR, mask=_ACCESS_MASK),
            )
            for call, flags in (("open", 1), ("openat", 2))
        ),
        # Its flags are in memory.
        rule("openat2", ENOSYS),
    ),
}

_MORE_CALLS = {
    "x86_64": {"pidfd_getfd": 438, "seccomp": 317},
    "aarch64": {"pidfd_getfd": 438, "seccomp": 277},
}
_SET_MODE_FILTER = 1
_NEW_LISTENER, _WAIT_KILLABLE_RECV = 1 << 3, 1 << 5

_CALL = struct.Struct("=QIIiIQ6Q")
_RESPONSE = struct.Struct("=QqiI")
_ADDED = struct.Struct("=QIIII")
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_IS_VALID, _ADD_FD = 0x40082102, 0x40182103
_CONTINUE, _SET_FD = 1, 1

Call = collections.namedtuple("Call", "id thread number arguments")
"""A call that waits: `thread` is the id of the calling thread."""

_libc = ctypes.CDLL(None, use_errno=True)


def notified(machine: str, served: FrozenSet[str]) -> dict[int, str]:
    """Return the names of the calls that are notified, by number.

    Args:
        machine: As `os.uname` calls it.
        served: Words such as `ATTRIBUTES`.

    Raises:
        KeyError: This machine is not known.
    """
    known = allowed_calls(machine)
    names = [name for word in sorted(served) for name in _NOTIFIED[word].split()]
    return {known[name]: name for name in names if name in known}


def rules(served: FrozenSet[str]) -> Tuple[SyscallRule, ...]:
    """Return what is refused or notified, beside `confined_calls.RULES`."""
    found = [
        rule("seccomp", EPERM),
        rule("pidfd_getfd", EPERM),
        # A socket without a peer could be given one.
        rule(
            "socketpair", _EOPNOTSUPP, outside(1, _STREAM, _SEQPACKET, mask=_TYPE_MASK)
        ),
        # Who is not dumpable cannot be looked at: neither served nor measured.
        rule("prctl", 0, within(0, _PR_SET_DUMPABLE), within(1, 0)),
    ]
    if SOCKETS not in served:
        found.append(rule("socket", _EAFNOSUPPORT, within(0, _UNIX, _IPV4, _IPV6)))
    for word in sorted(served):
        found += _REFUSED[word]
        found += [rule(name, NOTIFY) for name in _NOTIFIED[word].split()]
    return tuple(found)


@functools.lru_cache(maxsize=None)
def prepared(
    served: FrozenSet[str], others: Tuple[SyscallRule, ...] = (), /
) -> seccomp.Filter:
    """Return the filter as the kernel takes it, and what it points to.

    Args:
        served: What the listener's process answers.
        others: More rules of the same filter, which come first.

    Raises:
        OSError: There is none for this machine.
    """
    machine = os.uname().machine
    if machine not in _MORE_CALLS:
        raise OSError(errno.ENOSYS, f"no system call list for {machine}")
    return seccomp.of_rules(machine, (*others, *rules(served)), _MORE_CALLS[machine])


def install(
    fd: int, served: FrozenSet[str], others: Tuple[SyscallRule, ...] = ()
) -> None:
    """Put the filter on this process and its forks, and send its listener away.

    It needs no_new_privs, and comes after all that it notifies.

    Args:
        fd: The socket that `notifier.main.start` returned. It is closed.
        served: As in `prepared`. Without anything there is no listener.
        others: As in `prepared`.

    Raises:
        OSError: The kernel refused the filter, or nobody takes the listener.
    """
    filter_ = prepared(served, others)
    with socket.socket(fileno=fd) as channel:
        if not served:
            _put_up(filter_, 0)
            return
        listener = _put_up(filter_, _NEW_LISTENER | _WAIT_KILLABLE_RECV)
        send_fds(channel, b"l", [listener])
        os.close(listener)


def check() -> None:
    """Raise OSError if this kernel does not let a process answer another's calls."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        number = errno.ENOSYS
        try:
            linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
            install(theirs.detach(), frozenset([SOCKETS]))
            number = 0
        except OSError as error:
            number = error.errno or number
        finally:
            os._exit(number)
    with ours, theirs:
        number = os.waitpid(pid, 0)[1] >> 8
    if number:
        why = os.strerror(number)
        raise OSError(number, f"seccomp user notification: {why}")


def _put_up(filter_: seccomp.Filter, flags: int) -> int:
    long, pointer = ctypes.c_long, ctypes.byref(filter_[0])
    call = long(_MORE_CALLS[os.uname().machine]["seccomp"])
    result = _libc.syscall(call, long(_SET_MODE_FILTER), long(flags), pointer)
    return linux.check(result, "seccomp")


def receive(listener: int) -> Call:
    """Take the next call that waits.

    Raises:
        OSError: ENOENT when its thread has ended meanwhile.
    """
    buffer = bytearray(_CALL.size)
    fcntl.ioctl(listener, _RECEIVE, buffer, True)
    number, thread, _, call, _, _, *arguments = _CALL.unpack(buffer)
    return Call(number, thread, call, arguments)


def still_waits(listener: int, call: Call) -> bool:
    """Return True if the call's thread is alive, so that its id still means it."""
    try:
        fcntl.ioctl(listener, _IS_VALID, struct.pack("=Q", call.id))
    except OSError:
        return False
    return True


def answer(listener: int, call: Call, *, error: int = 0) -> None:
    """Let the call return 0, or fail with `error`. A dead thread needs no answer."""
    _send(listener, _RESPONSE.pack(call.id, 0, -error, 0))


def let_go_on(listener: int, call: Call) -> None:
    """Have the kernel do the call, whose arguments are all numbers."""
    _send(listener, _RESPONSE.pack(call.id, 0, 0, _CONTINUE))


def _send(listener: int, response: bytes) -> None:
    try:
        fcntl.ioctl(listener, _SEND, response)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def replace_descriptor(
    listener: int, call: Call, fd: int, theirs: int, *, inheritable: bool
) -> None:
    """Make a descriptor of the caller a copy of one of ours. Raises OSError."""
    flags = 0 if inheritable else os.O_CLOEXEC
    request = _ADDED.pack(call.id, _SET_FD, fd, theirs, flags)
    fcntl.ioctl(listener, _ADD_FD, request)
