"""Names of processes that are not reused, to mark what they make on this machine."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
from pathlib import Path

_PROC = Path("/proc")
"""The folder in which Linux describes processes. macOS has commands instead."""


def start_time(pid: int) -> str:
    """Return the start time of a process, as its system writes it; empty: none."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
        return stat.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "" if _PROC.is_dir() else _word("ps", "-o", "lstart=", "-p", str(pid))


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
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{pid_namespace()}"
    except OSError:
        # The name of a Mac changes with its network.
        return _word("sysctl", "-n", "kern.bootsessionuuid") or socket.gethostname()


def _word(*command: str) -> str:
    """Return what a command prints, as one word; empty if it cannot."""
    try:
        done = subprocess.run(  # noqa: S603 - commands of this file
            command, capture_output=True, text=True, check=False, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "".join(each for each in done.stdout if each.isalnum() or each == "-")


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
