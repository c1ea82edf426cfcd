"""The few Linux calls that the standard library lacks, by ctypes."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct

CLONE_VM = 0x00000100
CLONE_PIDFD = 0x00001000
CLONE_VFORK = 0x00004000
CLONE_PARENT = 0x00008000
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_GET_PDEATHSIG = 1, 2
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP = 28, 4
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4

_SIGCHLD = 17
_MAX_CAPABILITIES = 64
_USUAL_PROCESSES, _MOST_PROCESSES = 64, 1 << 22
_NOWHERE = -1
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)
# A cloned child must come back holding the interpreter lock, so this one keeps it.
_libc_locked = ctypes.PyDLL(None, use_errno=True)
# To look a name up costs more than to call it, and a program may forbid it.
for _name in ("capset", "mount", "prctl", "sethostname", "syscall", "unshare"):
    getattr(_libc, _name)
_fflush, _fflush_locked = _libc.fflush, _libc_locked.fflush
_stdout = ctypes.c_void_p.in_dll(_libc, "stdout")


def check(result: int, what: str) -> int:
    """Return what a call of C returned; raise its OSError if that is -1."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, argument: int = 0, extra: int = 0) -> None:
    """prctl(2). Raises OSError."""
    long = ctypes.c_ulong
    result = _libc.prctl(option, long(argument), long(extra), long(0), long(0))
    check(result, f"prctl {option}")


def flush_streams() -> None:
    """Write what the streams of C hold."""
    _fflush_locked(None)


def flush_stdout() -> None:
    """Write what C's standard output holds; other threads of Python may read it."""
    _fflush(_stdout)


def leave(code: int) -> None:
    """exit(3), which flushes the streams of C; it does not return."""
    _libc_locked.exit(code)


def parent_death_signal() -> int:
    """Return the signal that the death of the parent sends, or 0. Raises OSError."""
    number = ctypes.c_int()
    check(_libc.prctl(PR_GET_PDEATHSIG, ctypes.byref(number)), "prctl")
    return number.value


def unshare(flags: int) -> None:
    """unshare(2). Raises OSError."""
    check(_libc.unshare(flags), "unshare")


def clone(flags: int) -> int:
    """fork(2) into new namespaces; 0 in the child. For single-threaded callers.

    Raises:
        OSError: The kernel refused one of the namespaces.
    """
    number = _SYS_CLONE.get(os.uname().machine)
    if number is None:
        raise OSError(f"clone is not known on {os.uname().machine}")
    long = ctypes.c_long
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = _libc_locked.syscall(
        long(number), long(flags | _SIGCHLD), long(0), long(0), long(0), long(0)
    )
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    return check(pid, "clone")


def other_processes() -> int:
    """Return the processes and threads that the kernel counts for this one's user.

    No file says that: /proc shows those of one PID namespace, and the kernel counts all
    of the machine. Its answer to a fork that cannot succeed tells if one more would
    pass a limit. A search over limits takes a fifth of a millisecond. For callers with
    one thread.

    Returns:
        Their number without this one; 0 where no limit holds this process.

    Raises:
        OSError: The user can have no more, or the kernel refused for another reason.
    """
    own = resource.getrlimit(resource.RLIMIT_NPROC)
    most = own[1] if own[1] != resource.RLIM_INFINITY else _MOST_PROCESSES
    try:
        least, enough = 0, min(_USUAL_PROCESSES, most)
        while not _has_room(enough, own[1]):
            if enough == most:
                raise BlockingIOError(errno.EAGAIN, "the user can have no process more")
            least, enough = enough + 1, min(enough * 2, most)
        while least < enough:
            middle = (least + enough) // 2
            if _has_room(middle, own[1]):
                enough = middle
            else:
                least = middle + 1
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, own)
    # This process, and the one that there would be room for.
    return max(enough - 2, 0)


def _has_room(limit: int, hard: int) -> bool:
    """Return True if a fork would not pass a limit of processes. Raises OSError."""
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, hard))
    # The kernel looks at the limit before it fails to write a descriptor of the process
    # to nowhere. If it made the process all the same, that would end while this waits.
    flags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD | _SIGCHLD
    long = ctypes.c_long
    number = _SYS_CLONE[os.uname().machine]
    arguments = map(long, (number, flags, 0, _NOWHERE, 0, 0))
    if _libc_locked.syscall(*arguments) == 0:
        os._exit(0)
    refused = ctypes.get_errno()
    if refused not in (errno.EAGAIN, errno.EFAULT):
        raise OSError(refused, f"clone: {os.strerror(refused)}")
    return refused == errno.EFAULT


def mount(
    source: str, target: str, kind: str = "", flags: int = 0, options: str = ""
) -> None:
    """mount(2). Raises OSError that names the target."""
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode(), flags, options.encode()
    )
    check(result, f"mount {target}")


def umount(target: str, flags: int = MNT_DETACH) -> None:
    """Detach a mount with everything below it; without the flag only what is idle.

    Raises:
        OSError: It is in use, or no mount.
    """
    check(_libc.umount2(target.encode(), flags), f"umount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    """pivot_root(2). Raises OSError."""
    number = _SYS_PIVOT_ROOT[os.uname().machine]
    check(_libc.syscall(number, new_root.encode(), put_old.encode()), "pivot_root")


def set_hostname(name: str) -> None:
    """sethostname(2). Raises OSError."""
    check(_libc.sethostname(name.encode(), len(name)), "sethostname")


def bring_up_loopback(settings: int) -> None:
    """Give an empty network namespace a working 127.0.0.1, with all ports for anybody.

    Args:
        settings: The folder /proc/sys/net/ipv4 of a /proc that can be written to, open.

    Raises:
        OSError: The kernel refused.
    """
    import fcntl
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        # SIOCSIFFLAGS with IFF_UP | IFF_RUNNING
        request = struct.pack("16sH14x", b"lo", 0x41)
        try:
            fcntl.ioctl(handle, 0x8914, request)
        except OSError as error:
            why = f"loopback interface: {error.strerror}"
            raise OSError(error.errno, why) from None
    try:
        low_ports = os.open("ip_unprivileged_port_start", os.O_WRONLY, dir_fd=settings)
    except OSError:
        # Programs can do without; kernels before 4.11 have no such setting.
        return
    os.write(low_ports, b"0")
    os.close(low_ports)


def drop_bounding_set() -> None:
    """Empty the capability bounding set; needs CAP_SETPCAP. Raises OSError."""
    for capability in range(_MAX_CAPABILITIES):
        if _libc.prctl(PR_CAPBSET_DROP, capability) == 0:
            continue
        if ctypes.get_errno() == errno.EINVAL:
            # This kernel has no capability of this number, nor of a higher one.
            return
        check(-1, "drop the bounding set")


def drop_capabilities(kept: int = 0) -> None:
    """Empty the sets of capabilities: inheritable, ambient and, but for some, the rest.

    Args:
        kept: A bit mask of those that stay effective and permitted.

    Raises:
        OSError: The kernel refused.
    """
    try:
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError as error:
        # gVisor knows no ambient set; there is nothing to empty then.
        if error.errno != errno.EINVAL:
            raise
    header = struct.pack("=Ii", 0x20080522, 0)
    low, high = kept & 0xFFFF_FFFF, kept >> 32
    data = struct.pack("=6I", low, low, 0, high, high, 0)
    check(_libc.capset(header, data), "capset")


def pidfd_open(pid: int) -> int:
    """pidfd_open(2), the same number on every machine. Raises OSError."""
    return check(_libc.syscall(434, pid, 0), "pidfd_open")
