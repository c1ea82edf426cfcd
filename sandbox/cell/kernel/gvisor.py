"""gVisor: a kernel that answers as Linux does, and the places where it does not."""

from __future__ import annotations

import os

# All of its releases say so, whatever they call themselves.
_VERSION = "#1 SMP Sun Jan 10 15:06:54 PST 2016"


def is_this_kernel() -> bool:
    """Return True if this process runs on gVisor, and not on Linux."""
    return os.uname().version == _VERSION


def has_loopback() -> bool:
    """Return True if a new network namespace has more than no network at all.

    It has not where the container uses the network of its host (`--network=host`).

    Raises:
        OSError: There are no new namespaces.
    """
    import socket

    from . import linux

    pid = linux.clone(linux.CLONE_NEWUSER | linux.CLONE_NEWNET)
    if pid == 0:
        try:
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def execute_read_only(descriptor: int) -> None:
    """Start this program anew from a mount where nobody can write to its interpreter.

    Processes reach the file that they execute by /proc/self/exe, on the mount that it
    came from, whatever root they have. Linux refuses writes to a file that is executed.

    Args:
        descriptor: The program's code, which is read from its begin again.

    Raises:
        OSError: The kernel refused the mount.
    """
    from . import linux

    python = os.readlink("/proc/self/exe")
    if os.statvfs("/proc/self/exe").f_flag & os.ST_RDONLY:
        return
    linux.mount(python, python, "", linux.MS_BIND)
    linux.mount("none", python, "", linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY)
    with open("/proc/self/cmdline", "rb") as file:
        arguments = file.read().split(b"\0")[:-1]
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.execv(python, arguments)
