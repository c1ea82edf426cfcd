"""The filter of system calls, run by hand: what it answers, for both machines.

What a kernel makes of it is in tests/security/kernel/test_call_arguments.py.
"""

from __future__ import annotations

import errno
import struct

import pytest

from toolcell.sandbox.cell.kernel.calls import allowed_calls
from toolcell.sandbox.cell.kernel.seccomp import (
    RULES,
    USER_RULES,
    bpf_program,
    closing_program,
)
from toolcell.sandbox.cell.wire.contract import CELL_UID, FOLDERS, MOUNTS

ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
# Numbers of calls that are not in the list: x86_64, aarch64.
OTHERS = {"seccomp": (317, 277), "bpf": (321, 280), "clone3": (435, 435)}
NULL, POINTER, FAR_POINTER = 0, 0x7FFF_1000, 0x7FFF_0000_0000
SOL_SOCKET, SOL_TCP, SOL_IPV6 = 1, 6, 41
FLAGS = 0x80000 | 0x800
ALL = 0xFFFF_FFFF
OWN_USERS = (0, CELL_UID, 0xFFFF_FFFF, 2**64 - 1)
OTHER_USERS = (1, 65_534, CELL_UID + 1, 0xFFFF_FFFE, 1 << 32 | 65_534)

ANSWERS = [
    # A1: filters of programs' own.
    ("seccomp", (1, 0, POINTER), "EPERM"),
    ("prctl", (22, 2, POINTER), "EINVAL"),
    ("prctl", (22, 1), "EINVAL"),
    ("prctl", (15, POINTER), "done"),
    ("prctl", (21,), "done"),
    *(("setsockopt", (3, SOL_SOCKET, o, POINTER, 16), "EPERM") for o in (26, 50, 51)),
    ("setsockopt", (3, SOL_SOCKET, 52, POINTER, 4), "EPERM"),
    # The kernel sees 32 bits of both.
    ("setsockopt", (3, 1 << 32 | SOL_SOCKET, 1 << 32 | 26, POINTER, 16), "EPERM"),
    *(("setsockopt", (3, SOL_SOCKET, o, POINTER, 4), "done") for o in (2, 15, 27, 49)),
    ("setsockopt", (3, SOL_SOCKET, 53, POINTER, 4), "done"),
    ("setsockopt", (3, SOL_TCP, 26, POINTER, 4), "done"),
    ("setsockopt", (3, SOL_IPV6, 26, POINTER, 4), "done"),
    ("setsockopt", (3, SOL_IPV6, 32, POINTER, 24), "ENOPROTOOPT"),
    # A2: what the kernel would look for a module for.
    *(("socket", (family, 1, 0), "done") for family in (1, 2, 10)),
    *(("socket", (family, 1, 0), "EPERM") for family in (0, 16, 17, 38, 40)),
    *(("socket", (f, 1 | FLAGS, p), "done") for f in (2, 10) for p in (0, 6)),
    *(("socket", (f, 2 | FLAGS, p), "done") for f in (2, 10) for p in (0, 17)),
    ("socket", (2, 2, 1), "done"),
    ("socket", (10, 2, 58), "done"),
    *(
        ("socket", (family, kind, protocol), "EPROTONOSUPPORT")
        for family in (2, 10)
        for kind, protocol in ((1, 17), (1, 132), (1, 262), (2, 6), (2, 136))
    ),
    ("socket", (2, 2, 58), "EPROTONOSUPPORT"),
    ("socket", (10, 2, 1), "EPROTONOSUPPORT"),
    *(("socket", (f, k, 0), "ESOCKTNOSUPPORT") for f in (2, 10) for k in (4, 5, 6, 10)),
    *(("socket", (f, 3 | FLAGS, p), "EPERM") for f in (2, 10) for p in (0, 1, 255)),
    ("socket", (1, 5, 0), "done"),
    ("socketpair", (1, 1, 0, POINTER), "done"),
    *(("socketpair", (f, 1, 132, POINTER), "ENOTSUP") for f in (2, 10, 16, 38)),
    *(("setsockopt", (3, SOL_TCP, o), "ENOPROTOOPT") for o in (14, 31, 32, 38, 42)),
    *(("setsockopt", (3, SOL_TCP, o), "done") for o in (1, 13, 18, 23, 30, 33, 37)),
    *(("setsockopt", (3, 0, o), "ENOPROTOOPT") for o in (64, 67)),
    *(("getsockopt", (3, 0, o), "ENOPROTOOPT") for o in (64, 67)),
    *(
        (call, (3, 0, o), "done")
        for call in ("setsockopt", "getsockopt")
        for o in (1, 63)
    ),
    ("getsockopt", (3, SOL_SOCKET, 4), "done"),
    *(("ioctl", (3, c), "EPERM") for c in (0x5423, 0x8940, 0x8941, 0x8980, 0x8983)),
    *(("ioctl", (3, c), "EPERM") for c in (0x89A0, 0x89A3, 1 << 32 | 0x8940)),
    # A6: nobody else's terminal.
    *(("ioctl", (3, c), "EPERM") for c in (0x5412, 0x541C, 0x541D, 1 << 32 | 0x5412)),
    *(("ioctl", (3, c), "done") for c in (0x540E, 0x5413, 0x5414, 0x541E, 0x5430)),
    *(("ioctl", (3, c), "done") for c in (0x5401, 0x541B, 0x5421, 0x8912, 0x8946)),
    # A3: the limit that keeps cores in.
    ("setrlimit", (4, POINTER), "answered"),
    ("setrlimit", (7, POINTER), "done"),
    ("prlimit64", (0, 4, POINTER, NULL), "answered"),
    ("prlimit64", (0, 4, FAR_POINTER, NULL), "answered"),
    ("prlimit64", (0, 4, POINTER, POINTER), "EPERM"),
    ("prlimit64", (0, 4, FAR_POINTER, FAR_POINTER), "EPERM"),
    ("prlimit64", (0, 4, NULL, POINTER), "done"),
    ("prlimit64", (0, 7, POINTER, POINTER), "done"),
    ("prlimit64", (1, 7, NULL, POINTER), "EPERM"),
    ("getrlimit", (4, POINTER), "done"),
    # A4: huge pages.
    ("mmap", (0, 1 << 21, 3, 0x40022), "ENOMEM"),
    ("mmap", (0, 1 << 21, 3, 0x22), "done"),
    ("memfd_create", (POINTER, 0x4), "ENOMEM"),
    ("memfd_create", (POINTER, 0x3), "done"),
    ("shmget", (0, 1 << 21, 0xF80), "ENOMEM"),
    ("shmget", (0, 1 << 21, 0x780), "done"),
    # Flags that no kernel knows, beside those.
    *(("memfd_create", (POINTER, f), "EINVAL") for f in (ALL, 0x24, 1 << 25)),
    *(("mmap", (0, 1, 3, f), "EINVAL") for f in (ALL, 0x40020, 0x40022 | 63 << 26)),
    *(("shmget", (0, 1, f), "EINVAL") for f in (ALL, 0xF80 | 63 << 26)),
    *(("memfd_create", (POINTER, 4 | size << 26), "ENOMEM") for size in (21, 30, 63)),
    *((call, (1, ALL, 0), "EINVAL") for call in ("socket", "socketpair")),
    *((call, (ALL, 1, 0), "EAFNOSUPPORT") for call in ("socket", "socketpair")),
    # A7 and A8: commands of fcntl.
    *(("fcntl", (3, command, 1), "EINVAL") for command in (1024, 1026, 1029, 1040)),
    ("fcntl", (3, 1 << 32 | 1026, 1), "EINVAL"),
    *(("fcntl", (3, 1026, events), "answered") for events in (0, 1 << 31, 1 << 32)),
    *(("fcntl", (3, 1026, 1 << 31 | event), "EINVAL") for event in (1, 1 << 30)),
    *(
        ("fcntl", (3, c, 1), "done")
        for c in (0, 1, 4, 6, 7, 37, 1030, 1032, 1033, 1039)
    ),
    ("fcntl", (3, 1031, 4096), "done"),
    ("fcntl", (3, 1031, 65_536), "done"),
    ("fcntl", (3, 1031, 65_537), "EPERM"),
    ("fcntl", (3, 1031, 1 << 20), "EPERM"),
    # Namespaces, and calls that are not in the list.
    ("clone", (0x11,), "done"),
    ("clone", (0x10000011,), "EPERM"),
    ("clone", (1 << 32 | 0x10000011,), "EPERM"),
    # Threads share what they have open; processes need not.
    ("clone", (0x3D0F00,), "done"),
    ("clone", (0x3D0B00,), "EPERM"),
    ("clone", (0x4111,), "done"),
    ("close_range", (900, 901, 4), "done"),
    ("close_range", (900, 901, 2), "EINVAL"),
    ("close_range", (900, 901, 6), "EINVAL"),
    ("clone3", (POINTER, 88), "ENOSYS"),
    ("bpf", (5, POINTER), "EPERM"),
    # Users that a cell does not have; the kernel sees 32 bits of each.
    *(
        (call, (user,), "EPERM")
        for call in ("setuid", "setgid")
        for user in OTHER_USERS
    ),
    *((call, (each,), "done") for call in ("setuid", "setgid") for each in OWN_USERS),
    *(
        (call, (*before, each), "EPERM")
        for call in ("setreuid", "setregid", "setresuid", "setresgid")
        for each in OTHER_USERS
        for before in ((), (0,))
    ),
    *(
        (call, (0, CELL_UID, each), "EPERM")
        for call in ("setresuid", "setresgid")
        for each in OTHER_USERS
    ),
    *(
        (call, (each, each, each), "done")
        for call in ("setreuid", "setregid", "setresuid", "setresgid")
        for each in OWN_USERS
    ),
    *((call, (65_534,), "done") for call in ("setfsuid", "setfsgid")),
]


def answer(program: bytes, arch: int, number: int, arguments: tuple[int, ...]) -> str:
    """Run a filter as a kernel does."""
    padded = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("=IIQ6Q", number, arch, 0, *padded)
    code = list(struct.iter_unpack("=HBBI", program))
    at = a = x = 0
    while True:
        operation, yes, no, k = code[at]
        at += 1
        if operation == 0x20:
            (a,) = struct.unpack_from("=I", data, k)
        elif operation == 0x07:
            x = a
        elif operation == 0x54:
            a &= k
        elif operation == 0x4C:
            a |= x
        elif operation == 0x05:
            at += k
        elif operation in (0x15, 0x25, 0x35):
            at += yes if {0x15: a == k, 0x25: a > k, 0x35: a >= k}[operation] else no
        else:
            assert operation == 0x06
            return said(k)


def said(verdict: int) -> str:
    if verdict == ALLOW:
        return "done"
    assert verdict & 0xFFFF0000 == ERRNO
    number = verdict & 0xFFFF
    return errno.errorcode[number] if number else "answered"


def number_of(call: str, machine: str) -> int:
    if call in OTHERS:
        return OTHERS[call][list(ARCHES).index(machine)]
    return allowed_calls(machine)[call]


@pytest.mark.promise("A1", "A2", "A3", "A4", "A6", "A7", "A8")
@pytest.mark.parametrize("machine", ARCHES)
def test_arguments_are_looked_into(machine: str) -> None:
    program, arch = bpf_program(machine), ARCHES[machine]

    wrong = [
        (call, arguments, expected, got)
        for call, arguments, expected in ANSWERS
        if (got := answer(program, arch, number_of(call, machine), arguments))
        != expected
    ]

    assert wrong == []


@pytest.mark.parametrize("machine", ARCHES)
def test_a_call_without_a_rule_is_allowed_whatever_its_arguments(machine: str) -> None:
    program, arch = bpf_program(machine), ARCHES[machine]
    ruled = {rule.call for rule in (*RULES, *USER_RULES)}
    everything = (2**64 - 1,) * 6
    calls = {
        name: number
        for name, number in allowed_calls(machine).items()
        if name not in ruled
    }

    assert len(calls) > 200
    for arguments in ((), everything):
        answers = {answer(program, arch, each, arguments) for each in calls.values()}
        assert answers == {"done"}


@pytest.mark.parametrize("machine", ARCHES)
def test_all_other_calls_fail(machine: str) -> None:
    program, arch = bpf_program(machine), ARCHES[machine]
    allowed = {*allowed_calls(machine).values(), 435}

    known = {answer(program, arch, n, ()) for n in range(471) if n not in allowed}
    newer = {answer(program, arch, n, ()) for n in (471, 512, 0x3FFFFFFF)}
    foreign = {answer(program, 0x40000003, n, ()) for n in range(471)}
    x32 = {answer(program, arch, 0x40000000 | n, ()) for n in range(600)}

    assert (known, newer) == ({"EPERM"}, {"ENOSYS"})
    assert (foreign, x32) == ({"EPERM"}, {"EPERM"})


@pytest.mark.promise("A2")
def test_a_kernel_without_ipv6_is_not_asked_for_it() -> None:
    program = bpf_program("x86_64", ipv6=False)
    numbers = allowed_calls("x86_64")

    def socket(family: int) -> str:
        return answer(program, ARCHES["x86_64"], numbers["socket"], (family, 1, 0))

    assert [socket(each) for each in (1, 2, 10)] == ["done", "done", "EAFNOSUPPORT"]


@pytest.mark.parametrize("machine", ARCHES)
def test_programs_that_run_as_the_hosts_user_may_name_it(machine: str) -> None:
    program, arch = bpf_program(machine, own_user=False), ARCHES[machine]
    calls = sorted({rule.call for rule in USER_RULES})

    answers = {
        answer(program, arch, number_of(call, machine), (1000,) * 3) for call in calls
    }

    assert (len(calls), answers) == (6, {"done"})


@pytest.mark.parametrize("renews", [MOUNTS, FOLDERS])
@pytest.mark.parametrize("machine", ARCHES)
def test_a_program_of_a_reused_cell_has_the_filter_of_all_programs(
    machine: str, renews: str
) -> None:
    arch, usual = ARCHES[machine], bpf_program(machine)
    both = (bpf_program(machine, renews=renews), closing_program(machine))
    names = {number: name for name, number in allowed_calls(machine).items()}
    calls = [(number, ()) for number in (*range(600), 0x4000_0001)]
    calls += [(number_of(call, machine), given) for call, given, _ in ANSWERS]

    for number, arguments in calls:
        # The kernel takes the narrower answer, and of two errors the last filter's.
        answers = [answer(each, arch, number, arguments) for each in both]
        narrower = next((each for each in answers[::-1] if each != "done"), "done")
        expected = answer(usual, arch, number, arguments)
        assert narrower == expected, (names.get(number, number), arguments)
    assert answer(both[1], arch ^ 1, 0, ()) == "EPERM"


@pytest.mark.parametrize("machine", ARCHES)
def test_a_program_that_others_follow_in_a_container_leaves_nothing_that_lasts(
    machine: str,
) -> None:
    arch = ARCHES[machine]
    usual, narrow = closing_program(machine), closing_program(machine, lasting=True)

    closed = {
        number
        for number in range(600)
        if answer(narrow, arch, number, (1, 1)) != answer(usual, arch, number, (1, 1))
    }
    calls = ("msgget", "semget", "shmget", "mq_open")
    assert closed == {number_of(call, machine) for call in calls}
    assert {answer(narrow, arch, number, ()) for number in closed} == {"EPERM"}

    socket = number_of("socket", machine)
    answers = [answer(narrow, arch, socket, (family, 1)) for family in (1, 2, 10)]
    assert answers == ["done", "EAFNOSUPPORT", "EAFNOSUPPORT"]
    assert answer(narrow, arch, number_of("prctl", machine), (22, 2)) == "EINVAL"


@pytest.mark.parametrize("machine", ARCHES)
def test_a_supervisor_that_empties_folders_may_only_put_up_filters(
    machine: str,
) -> None:
    arch, usual = ARCHES[machine], bpf_program(machine)
    wider = bpf_program(machine, renews=FOLDERS)

    prctl = number_of("prctl", machine)
    for number in range(600):
        for given in ((), (22, 2, POINTER)):
            same = answer(wider, arch, number, given) == answer(
                usual, arch, number, given
            )
            assert same is ((number, given[:1]) != (prctl, (22,)))


@pytest.mark.parametrize("machine", ARCHES)
def test_a_supervisor_that_renews_its_cell_may_do_that_and_no_more(
    machine: str,
) -> None:
    arch, usual = ARCHES[machine], bpf_program(machine)
    wider = bpf_program(machine, renews=MOUNTS)

    opened = {
        number
        for number in range(600)
        if answer(wider, arch, number, ()) != answer(usual, arch, number, ())
    }

    # mount, umount2, unshare; prctl is open for filters.
    numbers = {"x86_64": {165, 166, 272}, "aarch64": {40, 39, 97}}
    assert opened == numbers[machine]
    prctl = number_of("prctl", machine)
    assert answer(wider, arch, prctl, (22, 2, POINTER)) == "done"
