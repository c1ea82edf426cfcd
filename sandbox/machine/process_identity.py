"""Names of processes that are not reused, to mark what they make on this machine."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from pathlib import Path


def start_time(pid: int) -> str:
    """Return the start time of a process in clock ticks; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


@functools.cache
def pid_namespace() -> int:
    """Return the number of this process's PID namespace.

    Raises:
        OSError: There is no /proc.
    """
    return os.stat("/proc/self/ns/pid").st_ino


@functools.cache
def machine_id() -> str:
    """Return the name of this machine's boot and PID namespace."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{pid_namespace()}"
    return socket.gethostname()


def this_process() -> str:
    """Return a name of this process that is not reused with its pid."""
    pid = os.getpid()
    return f"{pid}-{start_time(pid)}"


def lives(process: str) -> bool:
    """Return True if the process that `this_process` named so is still running."""
    pid, _, started = process.partition("-")
    if not pid.isdigit():
        return False
    if started:
        return start_time(int(pid)) == started
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
