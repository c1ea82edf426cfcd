"""Kernel and runtime: system calls, namespaces and other processes."""

from __future__ import annotations

import json
import os
import platform
from typing import Any

import pytest

from toolcell.sandbox import SandboxManager, Session
from toolcell.sandbox.backends.container_spec import seccomp_profile
from toolcell.sandbox.cell.kernel.calls import allowed_calls

from ...conftest import BackendRow, missing
from ...support.attacks.as_programs import attempt, program, system_call, value_of
from ...support.attacks.programs import reach_supervisor
from ...support.paths import ROOT

pytestmark = pytest.mark.anyio

PROFILE = ROOT.parent / "shared" / "corpora" / "docker_seccomp" / "default.json"
FORBIDDEN = (
    "ptrace mount umount2 unshare setns keyctl add_key request_key bpf "
    "perf_event_open userfaultfd kexec_load init_module finit_module "
    "open_by_handle_at io_uring_setup"
).split()
# Number on x86_64, number on aarch64.
NUMBERS = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_settime": (227, 112),
    "clone3": (435, 435),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "inotify_add_watch": (254, 27),
    "inotify_init1": (294, 26),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "memfd_secret": (447, 447),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "request_key": (249, 218),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}


def raw_calls(numbers: dict[str, int]) -> dict[str, str]:
    return {name: system_call(number, 0, 0, 0) for name, number in numbers.items()}


@pytest.mark.promise("E-34", "E-37")
async def test_no_dangerous_call_is_answered(cell: Session) -> None:
    column = {"x86_64": 0, "aarch64": 1}[platform.machine()]
    numbers = {name: pair[column] for name, pair in NUMBERS.items()}

    said = await value_of(cell, program(raw_calls, system_call), numbers=numbers)

    answered = {name: how for name, how in said.items() if how not in REFUSALS}
    assert answered == {}
    assert set(FORBIDDEN) <= said.keys()


REFUSALS = ("EPERM", "ENOSYS")


def new_namespaces() -> dict[str, str]:
    import subprocess

    flags = {
        "mount": 0x00020000,
        "cgroup": 0x02000000,
        "uts": 0x04000000,
        "ipc": 0x08000000,
        "user": 0x10000000,
        "pid": 0x20000000,
        "net": 0x40000000,
    }
    machine = __import__("os").uname().machine
    clone, unshare = {"x86_64": (56, 272), "aarch64": (220, 97)}[machine]
    said = {}
    for name, flag in flags.items():
        said[f"clone {name}"] = system_call(clone, flag | 17, 0, 0, 0, 0)
        said[f"unshare {name}"] = system_call(unshare, flag)
    for option in ("-Ur", "-UrmC"):
        command = ["unshare", option, "true"]
        done = subprocess.run(command, capture_output=True)
        said[f"unshare {option}"] = "done" if done.returncode == 0 else "EPERM"
    return said


@pytest.mark.promise("E-32", "E-33")
async def test_no_namespace_is_made(cell: Session) -> None:
    said = await value_of(cell, program(new_namespaces, system_call))

    assert set(said.values()) <= set(REFUSALS), said


def file_systems() -> dict[str, str]:
    import ctypes
    import errno
    import os

    libc = ctypes.CDLL(None, use_errno=True)
    os.makedirs("/tmp/here", exist_ok=True)
    said = {}
    for kind in ("cgroup", "cgroup2", "tmpfs", "proc", "sysfs", "overlay", "debugfs"):
        options = b"memory" if kind == "cgroup" else b""
        failed = libc.mount(b"none", b"/tmp/here", kind.encode(), 0, options)
        said[kind] = errno.errorcode[ctypes.get_errno()] if failed else "done"
    for name, flags in (("bind", 4096), ("remount", 32 | 4096)):
        failed = libc.mount(b"/", b"/", None, flags, None)
        said[name] = errno.errorcode[ctypes.get_errno()] if failed else "done"
    return said


@pytest.mark.promise("E-32", "E-37")
async def test_no_file_system_is_mounted(cell: Session) -> None:
    said = await value_of(cell, program(file_systems))

    assert set(said.values()) == {"EPERM"}, said


def sockets() -> dict[str, str]:
    import socket

    families = {
        "netlink": 16,
        "packet": 17,
        "alg": 38,
        "vsock": 40,
        "bluetooth": 31,
        "xdp": 44,
        "smc": 43,
        "rds": 21,
        "tipc": 30,
    }
    said = {
        f"{name} {kind}": attempt(lambda f=family, k=kind: socket.socket(f, k))  # type: ignore[misc]
        for name, family in families.items()
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW)
    }
    said["raw ip"] = attempt(lambda: socket.socket(2, socket.SOCK_RAW, 1))
    said["raw ip6"] = attempt(lambda: socket.socket(10, socket.SOCK_RAW, 58))
    return said


@pytest.mark.promise("E-34", "E-65")
async def test_only_plain_sockets_exist(cell: Session) -> None:
    said = await value_of(cell, program(sockets, attempt))

    assert "done" not in said.values(), said


def foreign_call_numbers() -> dict[str, str]:
    import ctypes
    import mmap
    import os
    from collections.abc import Callable

    libc = ctypes.CDLL(None, use_errno=True)

    def in_a_fork(call: Callable[[], int]) -> str:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if call() >= 0 else 1)
        status = os.waitpid(pid, 0)[1]
        return "killed" if os.WIFSIGNALED(status) else ["done", "refused"][status >> 8]

    # mov eax, 20 (getpid); int 0x80; ret
    code = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"
    protection = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    page = mmap.mmap(-1, 4096, prot=protection)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    said = {
        f"x32 {number}": in_a_fork(
            lambda n=number: libc.syscall(ctypes.c_long(n | 0x40000000), 0, 0)  # type: ignore[misc]
        )
        # getpid, ptrace, unshare
        for number in (39, 521, 272)
    }
    said["int 0x80"] = in_a_fork(ctypes.CFUNCTYPE(ctypes.c_int)(address))
    said["own table"] = in_a_fork(lambda: libc.syscall(ctypes.c_long(39)))
    return said


@pytest.mark.promise("E-35")
async def test_other_call_tables_are_closed(cell: Session) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("only x86_64 has a second and a third call table")
    said = await value_of(cell, program(foreign_call_numbers))

    assert said.pop("own table") == "done"
    assert set(said.values()) <= {"refused", "killed"}, said


@pytest.mark.promise("E-34")
@pytest.mark.corpus
def test_the_call_list_is_within_the_engines_own() -> None:
    if not PROFILE.is_file():
        missing(f"there is no {PROFILE}")
    theirs: set[str] = set()
    for rule in json.loads(PROFILE.read_text())["syscalls"]:
        needs_capability = rule.get("includes", {}).get("caps")
        if rule["action"] == "SCMP_ACT_ALLOW" and not needs_capability:
            theirs.update(rule["names"])
    ours = {*allowed_calls("x86_64"), *allowed_calls("aarch64")}

    assert ours - theirs == set()
    assert ours.isdisjoint(FORBIDDEN)


@pytest.mark.promise("E-34")
def test_the_engine_gets_the_same_call_list() -> None:
    profile = json.loads(seccomp_profile())
    allowed = {
        name
        for rule in profile["syscalls"]
        for name in rule["names"]
        if rule["action"] == "SCMP_ACT_ALLOW"
    }

    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert allowed == {*allowed_calls("x86_64"), *allowed_calls("aarch64")}


@pytest.mark.promise("E-36", "E-42", "E-73")
async def test_the_supervisor_is_out_of_reach(
    cell: Session, backend: BackendRow
) -> None:
    said = await value_of(cell, program(reach_supervisor, attempt, system_call))

    reached = {name for name, how in said.items() if how == "done"}
    assert reached - harmless(backend) == set(), said


def harmless(backend: BackendRow) -> set[str]:
    """What gVisor lets every uid ask of PID 1; it holds no secret and no nice value."""
    if backend.name == "runsc":
        return {"open maps", "open auxv", "fds", "priority"}
    return set()


def channel_and_secrets() -> dict[str, Any]:
    import os

    def text(path: str) -> str:
        try:
            with open(path, "rb") as file:
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""

    return {
        "environ": text("/proc/1/environ"),
        "cmdline": text("/proc/1/cmdline"),
        "fds": sorted(os.listdir("/proc/self/fd"), key=int),
        "processes": sorted(
            int(each) for each in os.listdir("/proc") if each.isdigit()
        ),
        "own pid": os.getpid(),
    }


@pytest.mark.promise("E-36", "E-39", "E-56")
async def test_there_is_nobody_and_nothing_else_in_a_cell(cell: Session) -> None:
    said = await value_of(cell, program(channel_and_secrets))

    # Standard streams, the result pipe, and listdir's own.
    assert said["fds"] == ["0", "1", "2", "3", "4"]
    # The supervisor, the process that forks for it, and the program.
    assert len(said["processes"]) == 3
    assert {1, said["own pid"]} < {*said["processes"]}
    for name, value in os.environ.items():
        if len(value) > 12 and name not in ("PATH", "HOME"):
            assert value not in said["environ"]


def read_only_files() -> dict[str, Any]:
    import ctypes
    import hashlib
    import mmap
    import os
    import sys

    target = os.path.realpath(sys.executable)
    shared = mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE
    fd = os.open(target, os.O_RDONLY)
    before = hashlib.sha256(os.pread(fd, 1 << 24, 0)).hexdigest()
    said: dict[str, Any] = {
        "open": attempt(lambda: os.open(target, os.O_WRONLY)),
        "self": attempt(lambda: os.open("/proc/self/exe", os.O_WRONLY)),
        "reopen": attempt(lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR)),
        "map": attempt(lambda: mmap.mmap(fd, 4096, *shared)),
        "truncate": attempt(lambda: os.truncate(target, 0)),
        "replace": attempt(lambda: os.rename(target, target + "~")),
        "chmod": attempt(lambda: os.chmod(target, 0o777)),
        "link": attempt(lambda: os.link(target, "/tmp/linked")),
    }
    # A private mapping of it, written through /proc/self/mem and raced with
    # madvise: what the copy-on-write holes did.
    page = mmap.mmap(fd, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(None, 4096, 1, 2, fd, 0)
    # gVisor has no /proc/self/mem that can be written.
    if attempt(lambda: open("/proc/self/mem", "r+b").close()) == "done":
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            for _ in range(200):
                libc.madvise(ctypes.c_void_p(address), 4096, 4)
                attempt(lambda: memory.seek(address) and memory.write(b"canary"))
    # Splicing its page into a pipe and writing behind it: the dirty pipe.
    _read, write = os.pipe()
    os.splice(fd, write, 1, offset_src=0)
    os.write(write, b"canary")
    page.close()
    said["changed"] = hashlib.sha256(os.pread(fd, 1 << 24, 0)).hexdigest() != before
    said["hash"] = before
    return said


@pytest.mark.promise("E-23", "E-30", "E-31")
async def test_files_of_the_system_stay_as_they_are(
    cell: Session, sandbox: SandboxManager
) -> None:
    code = program(read_only_files, attempt)
    said = await value_of(cell, code)
    # An innocent cell, made afterwards, sees the same bytes.
    again = await sandbox.run(code)

    assert said.pop("changed") is False
    unchanged = said.pop("hash")
    assert set(said.values()).isdisjoint({"done"}), said
    assert isinstance(again.value, dict)
    assert again.value["hash"] == unchanged
