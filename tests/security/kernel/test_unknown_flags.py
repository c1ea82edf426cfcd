"""Calls that are asked with all bits get the kernel's own answer.

Programs ask so to learn whether a kernel knows a call (Chromium, C libraries).
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolcell.sandbox import Sandbox
from toolcell.sandbox.cell.kernel.calls import allowed_calls

from ...conftest import IMAGE, BackendRow, apart
from ...support.attacks.as_programs import system_call

pytestmark = pytest.mark.anyio

ALL, HERE = 0xFFFF_FFFF, -100
ANY, NULL, OPEN = "any memory", 0, "an open file"
CALLS: dict[str, tuple[int | str, ...]] = {
    "accept4": (OPEN, NULL, NULL, ALL),
    "close_range": (3, 2, ALL),
    "copy_file_range": (OPEN, NULL, OPEN, NULL, 1, ALL),
    "dup3": (OPEN, 99, ALL),
    "epoll_create1": (ALL,),
    "eventfd2": (0, ALL),
    "execveat": (HERE, ANY, NULL, NULL, ALL),
    "faccessat2": (HERE, ANY, 0, ALL),
    "fallocate": (OPEN, ALL, 0, 1),
    "fcntl": (OPEN, ALL, 0),
    "futex": (ANY, ALL, 0, NULL, NULL, 0),
    "getpriority": (ALL, 0),
    "getrandom": (ANY, 1, ALL),
    "getsockopt": (OPEN, ALL, ALL, ANY, ANY),
    "ioctl": (OPEN, ALL, 0),
    "linkat": (HERE, ANY, HERE, ANY, ALL),
    "madvise": (NULL, 4096, ALL),
    "membarrier": (ALL, 0, 0),
    "memfd_create": (ANY, ALL),
    "mlock2": (NULL, 4096, ALL),
    "mlockall": (ALL,),
    "mmap": (NULL, 4096, 3, ALL, -1, 0),
    "mprotect": (NULL, 4096, ALL),
    "mremap": (NULL, 4096, 4096, ALL, NULL),
    "msync": (NULL, 4096, ALL),
    "newfstatat": (HERE, ANY, ANY, ALL),
    "openat2": (HERE, ANY, NULL, 0),
    "pidfd_open": (1, ALL),
    "pipe2": (ANY, ALL),
    "prctl": (ALL, 0, 0, 0, 0),
    "prlimit64": (0, ALL, NULL, NULL),
    "renameat2": (HERE, ANY, HERE, ANY, ALL),
    "setsockopt": (OPEN, ALL, ALL, NULL, 0),
    "shmget": (0, 4096, ALL),
    "signalfd4": (ALL, ANY, 8, ALL),
    "socket": (1, ALL, 0),
    "socketpair": (1, ALL, 0, ANY),
    "splice": (OPEN, NULL, OPEN, NULL, 1, ALL),
    "statx": (HERE, ANY, ALL, ALL, ANY),
    "tee": (OPEN, OPEN, 1, ALL),
    "timerfd_create": (1, ALL),
    "unlinkat": (HERE, ANY, ALL),
    "wait4": (ALL, NULL, ALL, NULL),
    "waitid": (ALL, 0, NULL, ALL, NULL),
}
MORE = {
    "family": ("socket", (ALL, 1, 0)),
    "pair of a family": ("socketpair", (ALL, 1, 0, ANY)),
    "internet": ("socket", (2, ALL, 0)),
    "huge and unknown": ("memfd_create", (ANY, 0x24)),
    "huge of no type": ("mmap", (NULL, 4096, 3, 0x40020, -1, 0)),
}
OWN = {
    # It takes any flags.
    "runsc": {"shmget": "EINVAL"},
    # Its kind of sockets is looked at first, as the machine's network is its own;
    # Landlock answers for devices, and the machine's System V objects are closed.
    "confined": {
        "socket": "ESOCKTNOSUPPORT",
        "socketpair": "ENOTSUP",
        "internet": "EAFNOSUPPORT",
        "ioctl": "EACCES",
        "shmget": "EPERM",
    },
}
"""What cells answer otherwise, on purpose."""


def ask_all(questions: dict[str, list[object]]) -> dict[str, str]:
    import ctypes
    import os

    memory = ctypes.create_string_buffer(4096)
    file = os.open("/dev/null", os.O_RDONLY)
    known = {"any memory": memory, "an open file": file}
    return {
        name: system_call(*[known.get(each, each) for each in asked])  # type: ignore[call-overload]
        for name, asked in questions.items()
    }


def asking() -> str:
    """Return a program that prints the answers."""
    numbers = allowed_calls(os.uname().machine)
    asked = {**{name: (name, CALLS[name]) for name in CALLS}, **MORE}
    questions = {name: [numbers[call], *args] for name, (call, args) in asked.items()}
    parts = [inspect.getsource(each) for each in (system_call, ask_all)]
    head = "from __future__ import annotations\nimport json"
    return "\n".join([head, *parts, f"print(json.dumps(ask_all({questions!r})))"])


def plainly(backend: BackendRow, code: str, folder: Path) -> str:
    """Return what the program prints on the kernel itself, without walls."""
    if backend.name == "runsc":
        import docker

        client = docker.from_env(timeout=60)
        try:
            said: bytes = client.containers.run(
                IMAGE,
                ["python3", "-c", code],
                user="10001",
                network_mode="none",
                runtime="runsc",
                remove=True,
            )
        finally:
            client.close()
        return said.decode()
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True, timeout=60
    ).stdout


@pytest.mark.promise("QX1")
async def test_unknown_flags_get_the_answer_of_the_kernel(
    sandbox: Sandbox, backend: BackendRow, tmp_path: Path
) -> None:
    code = asking()
    kernel = json.loads(apart(plainly, backend, code, tmp_path))

    result = await sandbox.run(code)

    assert result.status == "ok", result.stderr
    assert json.loads(result.stdout) == {**kernel, **OWN.get(backend.name, {})}
    assert kernel["memfd_create"] == "EINVAL"
