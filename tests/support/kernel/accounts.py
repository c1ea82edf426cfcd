"""Fills each account of a kernel from one cell, and asks who still gets something.

Only for a throw-away kernel, which `tests/security/kernel/test_kernel_accounts.py`
boots. Prints, as JSON, for each account what the cell took, what stopped it, and what
its neighbour in another cell and a process of the host's own user got then.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from toolcell.sandbox import Limits, SandboxConfig, SandboxManager, Stdout

CREW = 4
LIMITS = Limits(wall_seconds=300, memory_mib=128, open_files=128, pids=24)


def take(most: int, step: Callable[[int], object]) -> list[Any]:
    """Take something until it is refused; return how many there were, and why."""
    import errno

    for count in range(most):
        try:
            step(count)
        except OSError as error:
            return [count, errno.errorcode[error.errno or 0]]
    return [most, ""]


def called(name: str, *arguments: Any) -> int:
    """Call a function of the C library. Raises OSError."""
    import ctypes
    import os

    libc = ctypes.CDLL(None, use_errno=True)
    answer: int = getattr(libc, name)(*arguments)
    if answer == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def open_files(most: int) -> list[Any]:
    import os

    return take(most, lambda _: os.open("/dev/null", os.O_RDONLY))


def files_in_flight(most: int) -> list[Any]:
    import array
    import os
    import socket

    file = array.array("i", [os.open("/dev/null", os.O_RDONLY)])
    pairs: list[Any] = []

    def step(count: int) -> None:
        if count % 8 == 0:
            pairs.append(socket.socketpair())
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, file)
        pairs[-1][0].sendmsg([b"x"], [rights], socket.MSG_DONTWAIT)

    taken = take(most, step)
    globals()["kept"] = pairs
    return taken


def pipes(most: int) -> list[Any]:
    import fcntl
    import os

    sizes = []

    def step(_: int) -> None:
        read_fd, _ = os.pipe()
        sizes.append(fcntl.fcntl(read_fd, 1032))

    return [*take(most, step), sizes[-1]]


def epoll_watches(most: int) -> list[Any]:
    import os
    import select

    ends = [os.pipe()[0] for _ in range(30)]
    sets: list[Any] = []

    def step(count: int) -> None:
        if count % len(ends) == 0:
            sets.append(select.epoll())
        sets[-1].register(ends[count % len(ends)])

    taken = take(most, step)
    globals()["kept"] = sets
    return taken


def waiting_signals(most: int) -> list[Any]:
    import ctypes
    import os
    import signal

    signal.pthread_sigmask(signal.SIG_BLOCK, [40])
    value = ctypes.c_void_p(0)
    return take(most, lambda _: called("sigqueue", os.getpid(), 40, value))


def timers(most: int) -> list[Any]:
    import ctypes

    timer = ctypes.c_void_p()
    where = ctypes.byref(timer)
    return take(most, lambda _: called("timer_create", 1, None, where))


def posix_queues(most: int) -> list[Any]:
    import os

    flags, name = os.O_CREAT | os.O_RDWR, f"/q{os.getpid()}-"
    return take(
        most, lambda n: called("mq_open", f"{name}{n}".encode(), flags, 0o600, None)
    )


def locked_memory(most: int) -> list[Any]:
    import ctypes

    def step(_: int) -> None:
        # Of a segment: it is counted by user, and no process has to map it.
        segment = called("shmget", 0, 16_384, 0o1600)
        called("shmctl", segment, 11, ctypes.c_void_p())

    return take(most, step)


def message_queues(most: int) -> list[Any]:
    return take(most, lambda _: called("msgget", 0, 0o1600))


def semaphores(most: int) -> list[Any]:
    return take(most, lambda _: called("semget", 0, 100, 0o1600))


def shared_memory(most: int) -> list[Any]:
    return take(most, lambda _: called("shmget", 0, 4096, 0o1600))


def time_wait(most: int) -> list[Any]:
    import socket

    server = socket.create_server(("127.0.0.1", 0))

    def step(_: int) -> None:
        with socket.create_connection(server.getsockname()) as client:
            accepted, _ = server.accept()
            client.close()
            accepted.close()

    taken = take(most, step)
    with open("/proc/net/sockstat", encoding="utf-8") as file:
        words = file.read().split()
    return [*taken, int(words[words.index("tw") + 1])]


def pseudo_terminals(most: int) -> list[Any]:
    import os

    return take(most, lambda _: os.openpty())


def record_locks(most: int) -> list[Any]:
    import fcntl
    import tempfile

    def kernel_memory() -> int:
        with open("/proc/meminfo", encoding="utf-8") as lines:
            [kib] = [line.split()[1] for line in lines if line[:10] == "SUnreclaim"]
        return int(kib) * 1024

    file = tempfile.TemporaryFile()
    globals()["kept"] = file
    before = kernel_memory()
    taken = take(most, lambda n: fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * (most - n)))
    return [*taken, (kernel_memory() - before) / most]


def processes(most: int) -> list[Any]:
    import os

    read_fd, write_fd = os.pipe()
    globals()["kept"] = write_fd

    def step(_: int) -> None:
        if os.fork() == 0:
            # Until the one that made it ends.
            os.close(write_fd)
            os.read(read_fd, 1)
            os._exit(0)

    return take(most, step)


# Account: how to take of it, how much a cell tries to take, by how many processes, and
# how much everybody else must be able to.
ACCOUNTS: dict[str, tuple[Callable[[int], list[Any]], int, int, int]] = {
    "open_files": (open_files, 200, CREW, 50),
    "files_in_flight": (files_in_flight, 400, CREW, 20),
    "pipes": (pipes, 60, CREW, 10),
    "epoll_watches": (epoll_watches, 1500, CREW, 100),
    "waiting_signals": (waiting_signals, 5000, 1, 100),
    "timers": (timers, 5000, 1, 20),
    "posix_queues": (posix_queues, 50, CREW, 1),
    "locked_memory": (locked_memory, 50, 1, 1),
    "message_queues": (message_queues, 1000, CREW, 10),
    "semaphores": (semaphores, 1000, 1, 10),
    "shared_memory": (shared_memory, 5000, 1, 10),
    "time_wait": (time_wait, 300, CREW, 5),
    "pseudo_terminals": (pseudo_terminals, 40, 1, 4),
    "record_locks": (record_locks, 50_000, 1, 1000),
    "processes": (processes, 100, 1, 5),
}


def source(taker: Callable[[int], list[Any]]) -> str:
    parts = ["from __future__ import annotations", "from typing import Any"]
    parts += [inspect.getsource(each) for each in (take, called, taker)]
    return "\n".join(parts)


def filler(taker: Callable[[int], list[Any]], most: int, crew: int) -> str:
    """Return a program that takes all it can, says so, and keeps it."""
    return f"""{source(taker)}
import json, os, signal
assert (os.getuid(), os.getppid()) == (10_001, 1), "not in a cell"
read_fd, write_fd = os.pipe()
for _ in range({crew} - 1):
    if os.fork() == 0:
        os.write(write_fd, json.dumps({taker.__name__}({most})).encode() + b"\\n")
        while True: signal.pause()
taken = [{taker.__name__}({most})]
with open(read_fd) as lines:
    taken += [json.loads(lines.readline()) for _ in range({crew} - 1)]
print(json.dumps(taken), flush=True)
while True: signal.pause()
"""


def probe(taker: Callable[[int], list[Any]], most: int) -> str:
    return f"{source(taker)}\nprint(__import__('json').dumps({taker.__name__}({most})))"


async def fill(manager: SandboxManager, account: str) -> dict[str, Any]:
    taker, most, crew, share = ACCOUNTS[account]
    asked = probe(taker, share)
    said: dict[str, Any] = {}
    events = manager.stream(filler(taker, most, crew), limits=LIMITS)
    text = b""
    async with contextlib.aclosing(events):
        async for event in events:
            if not isinstance(event, Stdout):
                said["ended"] = repr(event)
                break
            text += event.data
            if not text.endswith(b"\n"):
                continue
            said["cell"] = json.loads(text)
            neighbour = await manager.run(asked, limits=LIMITS)
            said["neighbour"] = neighbour.stdout or neighbour.stderr
            host = await asyncio.to_thread(
                subprocess.run, [sys.executable, "-c", asked], capture_output=True
            )
            said["host"] = (host.stdout or host.stderr).decode()
            break
    return said


async def main() -> None:
    accounts = sys.argv[1:] or list(ACCOUNTS)
    config = SandboxConfig(backend="subprocess", limits=LIMITS)
    async with SandboxManager(config) as manager:
        for account in accounts:
            said = await fill(manager, account)
            print(json.dumps({"account": account, **said}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
