"""Who made a container or a cgroup, so that leftovers of the dead can be told."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from pathlib import Path

FOLDER_PREFIX = "toolcell_"


def start_time(pid: int) -> str:
    """Return when a process started, in clock ticks; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


@functools.cache
def pid_namespace() -> int:
    """Return the number of the namespace in which pids mean what they do here.

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
    """Tell whether a process named by `this_process` is still running here."""
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
