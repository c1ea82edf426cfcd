"""The system calls that untrusted code may make: one list, and rules about arguments.

A cell's supervisor installs both on itself, once; every program inherits them.
`sandbox/backends/container_spec.py` renders the list, and the rules that an engine can
state, for the Docker engine. The list is the engine's own default profile
(moby/profiles, `seccomp/default.json`) without capabilities, less what no program in a
cell needs: clock and scheduler changes, kernel AIO, fanotify, inotify (which shows what
others do with files that a cell shares with its host), file handles, secret memory,
mount queries, seccomp filters. A call that is known and refused fails with EPERM, one
that this list does not know with ENOSYS, so that C libraries fall back to older calls.

The rules close what the kernel keeps in accounts of the machine or of a user, which no
cgroup bounds, what makes it start programs of its own as root, and what reaches into
folders that a cell shares with its host.
"""

from __future__ import annotations

import functools
import os
import struct

from ..wire.contract import CELL_UID, MOUNTS
from . import confined_calls
from .bpf import EINVAL, ENOSYS, EPERM, assemble, given, outside, rule, within
from .calls import (
    MACHINES,
    allowed_calls,
    audit_arch,
    named_calls,
    renewal_calls,
    seccomp_call,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    from typing import Iterable

    from .bpf import SyscallRule

    Filter = tuple[ctypes.Array[ctypes.c_char], ctypes.Array[ctypes.c_char]]

# Newer calls than this did not exist when the list was made.
_LAST_KNOWN_CALL = 470

# What a cell keeps in its namespaces after a program: System V objects, queues.
_LASTING_CALLS = ("msgget", "semget", "shmget", "mq_open")

_CLONE_NEW, _CLONE_THREAD, _CLONE_FILES = 0x7E020000, 0x10000, 0x400
_CLOSE_RANGE_UNSHARE = 2
_UNIX, _IPV4, _IPV6 = 1, 2, 10
_STREAM, _DATAGRAM, _RAW, _TYPE_MASK = 1, 2, 3, 0xF
_TCP, _UDP, _ICMP, _ICMPV6 = 6, 17, 1, 58
_SOL_IP, _SOL_SOCKET, _SOL_TCP, _SOL_IPV6 = 0, 1, 6, 41
_RLIMIT_CORE = 4
_F_NOTIFY, _DN_EVENTS = 1026, 0x7FFF_FFFF
_F_SETPIPE_SZ, _PIPE_BYTES = 1031, 65_536
_MAP_HUGETLB, _MFD_HUGETLB, _SHM_HUGETLB = 0x40000, 0x4, 0x800
_MAP_TYPES, _MAP_TYPE_MASK = (1, 3), 0xF
_MFD_UNKNOWN = 0x03FF_FFE0
# Sizes that huge pages have anywhere, as flags name them: the usual, 64 KiB to 16 GiB.
_HUGE_SIZES, _HUGE_SIZE_MASK = (0, (16 << 26, 34 << 26)), 0xFC00_0000
_FAMILIES = (0, 45)
# All but a type, SOCK_CLOEXEC and SOCK_NONBLOCK.
_UNKNOWN_OF_TYPE = 0xFFF7_F7F0
# What the kernel itself says where it lacks something.
_ENOMEM, _ENOPROTOOPT, _EPROTONOSUPPORT, _ESOCKTNOSUPPORT = 12, 92, 93, 94
_EOPNOTSUPP, _EAFNOSUPPORT = 95, 97

_INET = within(0, _IPV4, _IPV6)
_IS_STREAM = within(1, _STREAM, mask=_TYPE_MASK)
_IS_DATAGRAM = within(1, _DATAGRAM, mask=_TYPE_MASK)
_MAP_HUGE = outside(3, 0, mask=_MAP_HUGETLB)
_SHM_HUGE = outside(2, 0, mask=_SHM_HUGETLB)

RULES = (
    # Threads and processes, never a namespace. A filter cannot see the flags of clone3;
    # C libraries fall back from it.
    rule("clone", EPERM, outside(0, 0, mask=_CLONE_NEW)),
    # The watch of memory counts what a process has open, not what a thread has alone.
    rule(
        "clone",
        EPERM,
        outside(0, 0, mask=_CLONE_THREAD),
        within(0, 0, mask=_CLONE_FILES),
    ),
    rule("close_range", EINVAL, outside(2, 0, mask=_CLOSE_RANGE_UNSHARE)),
    rule("clone3", ENOSYS),
    # Filters are memory in one account of the machine (net.core.bpf_jit_limit):
    # PR_SET_SECCOMP; SO_ATTACH_FILTER, _BPF, _REUSEPORT_CBPF, _REUSEPORT_EBPF.
    rule("prctl", EINVAL, within(0, 22)),
    rule("setsockopt", EPERM, within(1, _SOL_SOCKET), within(2, 26, (50, 52))),
    # So are the machine's 4,096 flow labels: IPV6_FLOWLABEL_MGR.
    rule("setsockopt", _ENOPROTOOPT, within(1, _SOL_IPV6), within(2, 32)),
    rule("socket", EINVAL, outside(1, 0, mask=_UNKNOWN_OF_TYPE)),
    rule("socketpair", EINVAL, outside(1, 0, mask=_UNKNOWN_OF_TYPE)),
    rule("socket", _EAFNOSUPPORT, outside(0, _FAMILIES)),
    rule("socketpair", _EAFNOSUPPORT, outside(0, _FAMILIES)),
    # No netlink, packet, vsock or crypto sockets.
    rule("socket", EPERM, outside(0, _UNIX, _IPV4, _IPV6)),
    rule("socketpair", _EOPNOTSUPP, outside(0, _UNIX)),
    # For types and protocols that it lacks the kernel runs modprobe, as root.
    rule("socket", EPERM, _INET, within(1, _RAW, mask=_TYPE_MASK)),
    rule(
        "socket",
        _ESOCKTNOSUPPORT,
        _INET,
        outside(1, _STREAM, _DATAGRAM, mask=_TYPE_MASK),
    ),
    rule("socket", _EPROTONOSUPPORT, _INET, _IS_STREAM, outside(2, 0, _TCP)),
    rule(
        "socket",
        _EPROTONOSUPPORT,
        within(0, _IPV4),
        _IS_DATAGRAM,
        outside(2, 0, _UDP, _ICMP),
    ),
    rule(
        "socket",
        _EPROTONOSUPPORT,
        within(0, _IPV6),
        _IS_DATAGRAM,
        outside(2, 0, _UDP, _ICMPV6),
    ),
    # And for ciphers by their names (TCP_MD5SIG, _ULP, _MD5SIG_EXT, _AO_*),
    rule(
        "setsockopt", _ENOPROTOOPT, within(1, _SOL_TCP), within(2, 14, 31, 32, (38, 42))
    ),
    # for tables of packet filters (IPT_SO_*),
    rule("setsockopt", _ENOPROTOOPT, within(1, _SOL_IP), within(2, (64, 67))),
    rule("getsockopt", _ENOPROTOOPT, within(1, _SOL_IP), within(2, (64, 67))),
    # for line disciplines (TIOCSETD), bridges and virtual networks (SIOC?IFBR,
    # SIOC???DLCI, SIOC?IFVLAN, SIOCBR*).
    rule(
        "ioctl",
        EPERM,
        within(1, 0x5423, (0x8940, 0x8941), (0x8980, 0x8983), (0x89A0, 0x89A3)),
    ),
    # Nobody types for others (TIOCSTI), or takes the console (TIOCLINUX, TIOCCONS).
    rule("ioctl", EPERM, within(1, 0x5412, (0x541C, 0x541D))),
    # A limit of 1 byte keeps a crash from the machine's handler of cores, which 0 does
    # not. A program that asks for 0 has what it wants already, so it gets success.
    rule("setrlimit", 0, within(0, _RLIMIT_CORE)),
    # Another process's limits, the supervisor's included, stay out of reach.
    rule("prlimit64", EPERM, outside(0, 0)),
    rule("prlimit64", EPERM, within(1, _RLIMIT_CORE), given(2), given(3)),
    rule("prlimit64", 0, within(1, _RLIMIT_CORE), given(2)),
    # Huge pages that the machine keeps ready are in no cell's memory. Programs that ask
    # with all flags, to learn whether the kernel knows a call, expect EINVAL.
    rule("mmap", EINVAL, _MAP_HUGE, outside(3, _MAP_TYPES, mask=_MAP_TYPE_MASK)),
    rule("mmap", EINVAL, _MAP_HUGE, outside(3, *_HUGE_SIZES, mask=_HUGE_SIZE_MASK)),
    rule("memfd_create", EINVAL, outside(1, 0, mask=_MFD_UNKNOWN)),
    rule("shmget", EINVAL, _SHM_HUGE, outside(2, *_HUGE_SIZES, mask=_HUGE_SIZE_MASK)),
    rule("mmap", _ENOMEM, _MAP_HUGE),
    rule("memfd_create", _ENOMEM, outside(1, 0, mask=_MFD_HUGETLB)),
    rule("shmget", _ENOMEM, _SHM_HUGE),
    # F_NOTIFY and F_SETDELEG show what others do in shared folders, F_SETLEASE delays
    # writers there: they are not among these, nor is anything newer. F_NOTIFY of no
    # events, which ends a watch, succeeds.
    rule("fcntl", 0, within(1, _F_NOTIFY), within(2, 0, mask=_DN_EVENTS)),
    rule(
        "fcntl", EINVAL, outside(1, (0, 17), (36, 38), 1025, 1027, 1028, (1030, 1039))
    ),
    # No pipe beyond what each has from the start: their pages are counted by user.
    rule("fcntl", EPERM, within(1, _F_SETPIPE_SZ), outside(2, (0, _PIPE_BYTES))),
)
"""Exceptions to the list: the first rule of a call that holds is its answer."""

_UNCHANGED = 0xFFFF_FFFF
_USERS = 0, CELL_UID, _UNCHANGED
USER_RULES = tuple(
    rule(call, EPERM, outside(argument, *_USERS))
    for call, arguments in (
        ("setuid", 1),
        ("setgid", 1),
        ("setreuid", 2),
        ("setregid", 2),
        ("setresuid", 3),
        ("setresgid", 3),
    )
    for argument in range(arguments)
)
"""Exceptions where programs have their own user and can have no other. For
ids that a user namespace lacks the kernel answers EINVAL; programs expect EPERM."""

# A kernel without IPv6 runs modprobe for each such socket.
_NO_IPV6 = rule("socket", _EAFNOSUPPORT, within(0, _IPV6))

# Ports in TIME_WAIT, counters, addresses of peers.
_NO_LASTING_SOCKETS = rule("socket", _EAFNOSUPPORT, _INET)

_NO_FILTERS = tuple(each for each in RULES if each.call == "prctl")
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_CLONE3, _PIDFD_GETFD = 435, 438


def bpf_program(
    machine: str,
    *,
    ipv6: bool = True,
    own_user: bool = True,
    renews: str = "",
    confined: str = "",
) -> bytes:
    """Return the filter for `machine` as `struct sock_filter` records.

    Args:
        machine: As `os.uname` calls it.
        ipv6: True if the kernel has IPv6.
        own_user: True if programs run as `CELL_UID`, not as the host's user.
        renews: How a supervisor makes its cell new for each program; the filter is
            then for itself, and not for programs.
        confined: The user of a cell without namespaces; empty for any other cell.

    Raises:
        KeyError: There is no list for this machine.
    """
    calls = {**allowed_calls(machine), "clone3": _CLONE3}
    rules = (*(() if ipv6 else (_NO_IPV6,)), *RULES, *(USER_RULES if own_user else ()))
    if renews == MOUNTS:
        calls.update(renewal_calls(machine))
    if confined:
        calls = {name: calls[name] for name in calls.keys() - confined_calls.CLOSED}
        rules = tuple(each for each in rules if each.call in calls)
        rules = (*confined_calls.RULES, *rules)
        calls.update(seccomp_call(machine))
    if renews or confined:
        # Its programs put up a narrower one, by the one option that this closes.
        rules = tuple(each for each in rules if each.call != "prctl")
    return assemble(audit_arch(machine), calls, rules, _LAST_KNOWN_CALL)


def own_program(machine: str) -> bytes:
    """Return the filter of a process of ours that works for programs.

    It has the calls of the list, and the one by which it takes their sockets. Of
    arguments it may use more: options of sockets.

    Args:
        machine: As `os.uname` calls it.

    Raises:
        KeyError: There is no list for this machine.
    """
    calls = {**allowed_calls(machine), "clone3": _CLONE3, "pidfd_getfd": _PIDFD_GETFD}
    rules = [each for each in RULES if each.call != "setsockopt"]
    return assemble(audit_arch(machine), calls, rules, _LAST_KNOWN_CALL)


def closing_program(machine: str, *, lasting: bool = False) -> bytes:
    """Return the filter that makes the one of `renews` that of programs.

    Of two filters the narrower answer counts, and a short one is soon made.

    Args:
        machine: As `os.uname` calls it.
        lasting: True to close also what would leave something in the cell's namespaces.

    Raises:
        KeyError: There is no list for this machine.
    """
    closed = renewal_calls(machine)
    rules = _NO_FILTERS
    if lasting:
        closed.update(named_calls(_LASTING_CALLS, machine))
        rules = (*rules, _NO_LASTING_SOCKETS)
    return _all_but(machine, rules, set(closed.values()), allowed_calls(machine))


def _all_but(
    machine: str, rules: Iterable[SyscallRule], closed: set[int], known: dict[str, int]
) -> bytes:
    """Return a filter that allows every call, but for these and by these rules."""
    others = {*range(_LAST_KNOWN_CALL + 1)}.difference(closed)
    calls = {str(number): number for number in others}
    calls.update({each.call: known[each.call] for each in rules if each.call in known})
    return assemble(audit_arch(machine), calls, rules, _LAST_KNOWN_CALL)


def of_rules(
    machine: str, rules: tuple[SyscallRule, ...], more_calls: dict[str, int]
) -> Filter:
    """Return a filter that allows every call, but for these rules.

    Args:
        machine: As `os.uname` calls it.
        rules: Of calls that the list has.
        more_calls: The numbers of other calls in the rules.

    Raises:
        KeyError: There is no list for this machine.
    """
    known = {**allowed_calls(machine), **more_calls}
    return _fprog(_all_but(machine, rules, set(), known))


def install(*, own_user: bool, renews: str = "", confined: str = "") -> None:
    """Install the filter on this process and its forks. It needs no_new_privs.

    Args:
        own_user: True if programs run as `CELL_UID`, not as the host's user.
        renews: As in `bpf_program`.
        confined: As in `bpf_program`.

    Raises:
        OSError: The kernel refused the filter, or there is none for this machine.
    """
    _put_up(prepared(own_user, renews, confined))


def install_own() -> None:
    """Put `own_program` on this process. It needs no_new_privs. Raises OSError."""
    _put_up(prepared_own())


def make_up_for_gvisor() -> None:
    """Refuse this process and its forks what is harmless on Linux alone.

    That are System V objects and queues, of which gVisor does not tell how much memory
    they have, and signals to the first process, which Linux drops.

    Raises:
        OSError: The kernel refused the filter, or there is none for this machine.
    """
    # This process goes on to signal all others, and to put up another filter.
    own = ("kill", "prctl")
    rules = (
        *(rule(name, ENOSYS) for name in _LASTING_CALLS),
        rule("kill", EPERM, within(0, 1)),
        *(each for each in confined_calls.protecting(1) if each.call not in own),
    )
    _put_up(of_rules(_machine(), rules, {}))


def close(*, lasting: bool = False) -> None:
    """Put `closing_program` on this process, whose parent has the filter of `renews`.

    Args:
        lasting: As in `closing_program`.

    Raises:
        OSError: The kernel refused the filter, or there is none for this machine.
    """
    _put_up(prepared_closing(lasting))


def _put_up(filter_: Filter) -> None:
    import ctypes

    from .linux import prctl

    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(filter_[0]))


@functools.lru_cache(maxsize=None)
def prepared(own_user: bool, renews: str, confined: str, /) -> Filter:
    """Return the `struct sock_fprog` of this machine, and what it points to.

    Args:
        own_user: As in `bpf_program`.
        renews: As in `bpf_program`.
        confined: As in `bpf_program`.

    Raises:
        OSError: There is none for this machine.
    """
    program = bpf_program(
        _machine(),
        ipv6=_has_ipv6(),
        own_user=own_user,
        renews=renews,
        confined=confined,
    )
    return _fprog(program)


@functools.lru_cache(maxsize=None)
def prepared_closing(lasting: bool, /) -> Filter:
    """Return the same for `closing_program`. Raises OSError."""
    return _fprog(closing_program(_machine(), lasting=lasting))


@functools.lru_cache(maxsize=None)
def prepared_own() -> Filter:
    """Return the same for `own_program`. Raises OSError."""
    return _fprog(own_program(_machine()))


def _machine() -> str:
    machine = os.uname().machine
    if machine not in MACHINES:
        raise OSError(f"no system call list for {machine}")
    return machine


def _fprog(program: bytes) -> Filter:
    import ctypes

    code = ctypes.create_string_buffer(program, len(program))
    fields = struct.pack("@HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    return ctypes.create_string_buffer(fields, len(fields)), code


def _has_ipv6() -> bool:
    # To ask by a socket would run modprobe, too.
    return os.path.exists("/proc/net/if_inet6")
