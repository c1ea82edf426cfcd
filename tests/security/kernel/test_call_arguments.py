"""Calls that every program needs, with arguments that none does.

What the kernel counts by machine or by user, what makes it start programs as root, and
what reaches through a mounted folder. `tests/sandbox/cell/test_call_filter.py` runs the
rules by hand.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from toolcell.sandbox import Mount, SandboxManager, Session

from ...conftest import BackendRow, need_shared_memory
from ...support.attacks.as_programs import attempt, program, system_call, value_of

pytestmark = pytest.mark.anyio


def own_filters() -> dict[str, str]:
    import ctypes
    import os
    import socket
    import struct

    x86 = os.uname().machine == "x86_64"
    seccomp, prctl = (317, 157) if x86 else (277, 167)
    # One instruction: return 0x7fff0000, which takes every packet and every call.
    code = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000))
    filter_ = struct.pack("@HxxxxxxQ", 1, ctypes.addressof(code))
    pointer = ctypes.create_string_buffer(filter_)
    said = {
        "seccomp": system_call(seccomp, 1, 0, pointer),
        "prctl": system_call(prctl, 22, 2, pointer, 0, 0),
    }
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
        for name, option, value in (
            ("filter", 26, filter_),
            ("bpf", 50, struct.pack("i", 3)),
            ("reuseport filter", 51, filter_),
            ("reuseport bpf", 52, struct.pack("i", 3)),
        ):
            with socket.socket(family, socket.SOCK_DGRAM) as each:
                said[f"{name} {family}"] = attempt(
                    lambda s=each, o=option, v=value: s.setsockopt(1, o, v)  # type: ignore[misc]
                )
    return said


@pytest.mark.promise("A1")
async def test_no_program_has_a_filter_of_its_own(cell: Session) -> None:
    said = await value_of(cell, program(own_filters, attempt, system_call))

    assert said.pop("prctl") == "EINVAL"
    assert set(said.values()) == {"EPERM"}, said


def filters_of(pid: str) -> dict[str, str]:
    import re

    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return dict(re.findall(r"(Seccomp\w*):\s*(\d+)", file.read()))


@pytest.mark.promise("A1")
async def test_all_programs_of_a_cell_share_one_filter(
    cell: Session, backend: BackendRow
) -> None:
    supervisor = await value_of(cell, program(filters_of), pid="1")
    first = await value_of(cell, program(filters_of), pid="self")
    second = await value_of(cell, program(filters_of), pid="self")
    shell = await cell.run("grep Seccomp /proc/self/status", language="bash")

    told = dict(re.findall(r"(Seccomp\w*):\s*(\d+)", shell.stdout))
    assert supervisor == first == second == told
    assert first["Seccomp"] == "2"
    if backend.name != "runsc":
        # An engine has put its own on the whole container.
        expected = "2" if backend.name == "docker" else "1"
        assert first.get("Seccomp_filters", expected) == expected


def odd_sockets() -> dict[str, str]:
    import fcntl
    import socket
    import struct

    said = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        for kind in range(1, 11):
            for protocol in (0, 1, 2, 6, 17, 33, 58, 103, 115, 132, 136, 255, 262):
                said[f"socket {int(family)} {kind} {protocol}"] = attempt(
                    lambda a=(family, kind, protocol): socket.socket(*a)  # type: ignore[misc]
                )
    for other in (2, 10, 16, 17, 21, 30, 31, 38, 40, 43, 44):
        said[f"pair {other}"] = attempt(
            lambda f=other: socket.socketpair(f, socket.SOCK_STREAM)  # type: ignore[misc]
        )
    with socket.socket() as stream:
        for level, option, value in (
            (6, 14, bytes(216)),
            (6, 31, b"tls"),
            (6, 32, bytes(216)),
            (6, 38, bytes(304)),
            (0, 64, bytes(84)),
            (41, 32, struct.pack("16sIBBHHHI", bytes(16), 0, 0, 255, 1, 0, 0, 0)),
        ):
            said[f"option {level} {option}"] = attempt(
                lambda a=(level, option, value): stream.setsockopt(*a)  # type: ignore[misc]
            )
        said["table"] = attempt(lambda: stream.getsockopt(0, 64, 84))
        for request in (0x8940, 0x8941, 0x8980, 0x8982, 0x8983, 0x89A0, 0x89A1):
            said[f"ioctl {request:x}"] = attempt(
                lambda r=request: fcntl.ioctl(stream, r, bytes(40))  # type: ignore[misc]
            )
    return said


PLAIN = {
    *(f"socket {f} {kind} 0" for f in (2, 10) for kind in (1, 2)),
    *(f"socket {f} {pair}" for f in (2, 10) for pair in ("1 6", "2 17")),
}
# Where an engine lets the program's group ping; gVisor has no group for it.
PINGS = {"socket 2 2 1", "socket 10 2 58"}


@pytest.mark.promise("A1", "A2")
async def test_no_socket_has_the_kernel_look_for_a_module(cell: Session) -> None:
    said = await value_of(cell, program(odd_sockets, attempt))

    answered = {name for name, how in said.items() if how == "done"}
    assert PLAIN <= answered <= PLAIN | PINGS
    refusals = {
        "socket": {"EPERM", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT"},
        "pair": {"ENOTSUP", "EOPNOTSUPP"},
        "option": {"ENOPROTOOPT"},
        "table": {"ENOPROTOOPT"},
        "ioctl": {"EPERM"},
    }
    odd = {
        name: how
        for name, how in said.items()
        if name not in PLAIN | PINGS and how not in refusals[name.split()[0]]
    }
    assert odd == {}


def limits_of_cores() -> dict[str, Any]:
    import ctypes
    import os
    import resource
    import struct
    import subprocess
    import sys

    x86 = os.uname().machine == "x86_64"
    setrlimit, prlimit = (160, 302) if x86 else (164, 261)
    said: dict[str, Any] = {"before": list(resource.getrlimit(resource.RLIMIT_CORE))}
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, pair in (
        ("none", (0, 0)),
        ("all", (2**64 - 1, 2**64 - 1)),
        ("1", (1, 1)),
    ):
        new = ctypes.create_string_buffer(struct.pack("QQ", *pair))
        old = ctypes.create_string_buffer(16)
        said[f"setrlimit {name}"] = system_call(setrlimit, 4, new)
        said[f"prlimit {name}"] = system_call(prlimit, 0, 4, new, 0)
        said[f"swap {name}"] = system_call(prlimit, 0, 4, new, old)
    ask = "import resource; print(*resource.getrlimit(resource.RLIMIT_CORE))"
    shell = [
        "bash",
        "-c",
        'ulimit -c 0 && exec "$@"',
        "bash",
        sys.executable,
        "-c",
        ask,
    ]
    done = subprocess.run(shell, capture_output=True, text=True)
    said["shell"] = done.stdout + done.stderr
    said["after"] = list(resource.getrlimit(resource.RLIMIT_CORE))
    return said


@pytest.mark.promise("A3")
async def test_no_program_can_have_its_core_handled(cell: Session) -> None:
    said = await value_of(cell, program(limits_of_cores, system_call))

    # 0 would do for a file; a handler is started for all but 1.
    assert said["before"] == said["after"] == [1, 1]
    assert {how for name, how in said.items() if "swap" in name} == {"EPERM"}
    assert said["shell"] == "1 1\n"


def huge_pages() -> dict[str, str]:
    import os

    x86 = os.uname().machine == "x86_64"
    mmap, memfd, shmget = (9, 319, 29) if x86 else (222, 279, 194)
    size = 2 << 20
    said = {}
    # Of the machine's usual size, of 2 MiB, of 1 GiB.
    for order in (0, 21, 30):
        kind = order << 26
        said[f"mmap {order}"] = system_call(mmap, 0, size, 3, 0x40022 | kind, -1, 0)
        said[f"memfd {order}"] = system_call(memfd, b"huge", 0x4 | kind)
        said[f"shm {order}"] = system_call(shmget, 0, size, 0o5600 | kind)
    return said


@pytest.mark.promise("A4")
async def test_huge_pages_are_not_to_be_had(cell: Session) -> None:
    said = await value_of(cell, program(huge_pages, system_call))

    assert set(said.values()) == {"ENOMEM"}, said


def commands_of_fcntl(folder: str) -> dict[str, str]:
    import fcntl
    import os

    there = os.open(folder, os.O_RDONLY)
    # Leases are for a file's owner, which an ordinary user's cell may be there.
    file = os.open("/tmp/own", os.O_RDONLY | os.O_CREAT, 0o644)
    _, pipe = os.pipe()
    said = {
        "notify": attempt(lambda: fcntl.fcntl(there, 1026, 0x7FFFFFFF)),
        "lease": attempt(lambda: fcntl.fcntl(file, 1024, fcntl.F_RDLCK)),
        "delegation": attempt(lambda: fcntl.fcntl(there, 1040, bytes(8))),
        "larger pipe": attempt(lambda: fcntl.fcntl(pipe, 1031, 65_537)),
        "largest pipe": attempt(lambda: fcntl.fcntl(pipe, 1031, 1 << 20)),
        "smaller pipe": attempt(lambda: fcntl.fcntl(pipe, 1031, 4096)),
        "usual pipe": attempt(lambda: fcntl.fcntl(pipe, 1031, 65_536)),
    }
    return said


@pytest.mark.promise("A7", "A8")
async def test_nobody_is_watched_or_held_up_through_a_mount(
    backend: BackendRow, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    mounts = [Mount(source=str(tmp_path), target="/shared")]

    async with SandboxManager(backend.config(mounts=mounts)) as sandbox:
        code = program(commands_of_fcntl, attempt)
        result = await sandbox.run(code, inputs={"folder": "/shared"})

    assert isinstance(result.value, dict), result.stderr
    assert result.value == {
        "notify": "EINVAL",
        "lease": "EINVAL",
        "delegation": "EINVAL",
        "larger pipe": "EPERM",
        "largest pipe": "EPERM",
        "smaller pipe": "done",
        "usual pipe": "done",
    }


def plain_sockets() -> dict[str, Any]:
    import asyncio
    import socket

    async def echo() -> str:
        async def serve(reader: Any, writer: Any) -> None:
            writer.write(await reader.read(100))
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.get_extra_info("socket").setsockopt(6, socket.TCP_NODELAY, 1)
        writer.write(b"tcp")
        answer = await reader.read(100)
        writer.close()
        server.close()
        return answer.decode()

    def datagram() -> str:
        with socket.socket(2, socket.SOCK_DGRAM, socket.IPPROTO_UDP) as first:
            first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            first.bind(("127.0.0.1", 0))
            with socket.socket(2, socket.SOCK_DGRAM) as second:
                second.sendto(b"udp", first.getsockname())
            return first.recv(100).decode()

    left, right = socket.socketpair()
    with left, right:
        left.send(b"pair")
        pair = right.recv(100).decode()
    return {"tcp": asyncio.run(echo()), "udp": datagram(), "pair": pair}


def plain_processes() -> dict[str, Any]:
    import multiprocessing
    import resource
    import subprocess
    import sys
    import threading

    command = [sys.executable, "-c", "print(6 * 7)"]
    child = subprocess.run(command, capture_output=True, text=True)
    with multiprocessing.get_context("fork").Pool(2) as workers:
        pool = workers.map(abs, [-1, -2])
    found: list[int] = []
    threads = [threading.Thread(target=found.append, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    left = soft - resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return {
        "child": child.stdout + child.stderr,
        "pool": pool,
        "threads": sorted(found),
        "limit": left,
    }


def plain_files() -> dict[str, Any]:
    import fcntl
    import mmap
    import os
    import sqlite3
    import tempfile
    from multiprocessing import shared_memory

    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(f"{folder}/data.db")
        connection.execute("pragma journal_mode=wal")
        connection.execute("create table rows (id integer)")
        connection.executemany("insert into rows values (?)", [(1,), (2,)])
        connection.commit()
        [rows] = connection.execute("select sum(id) from rows").fetchone()
    with tempfile.NamedTemporaryFile() as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(8192)
        with mmap.mmap(file.fileno(), 8192) as view:
            view[:2] = b"ok"
            mapped = view[:2].decode()
    block = shared_memory.SharedMemory(create=True, size=4096)
    memory = memoryview(block.buf or b"")
    memory[:2] = b"ok"
    shared = bytes(memory[:2]).decode()
    memory.release()
    block.close()
    block.unlink()
    written = os.write(os.memfd_create("plain"), b"text")
    return {"rows": rows, "mapped": mapped, "shared": shared, "written": written}


@pytest.mark.promise("A1", "A2", "A4", "A8")
async def test_what_programs_need_works_as_before(cell: Session) -> None:
    need_shared_memory()
    sockets = await value_of(cell, program(plain_sockets))
    processes = await value_of(cell, program(plain_processes))
    files = await value_of(cell, program(plain_files))

    assert sockets == {"tcp": "tcp", "udp": "udp", "pair": "pair"}
    assert processes == {
        "child": "42\n",
        "pool": [1, 2],
        "threads": [0, 1, 2, 3],
        "limit": 1,
    }
    assert files == {"rows": 3, "mapped": "ok", "shared": "ok", "written": 4}
