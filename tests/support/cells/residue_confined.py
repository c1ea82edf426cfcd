"""What of the kinds of residue a program of a `confined` cell can leave and look for.

Its folders are the machine's, and so are the numbers and lists that kinds look at.
"""

from __future__ import annotations

NOT_THERE = {
    "it is the machine's file system: programs see the space of all, and are bounded "
    "one file at a time": (
        *("folders in folders", "a sparse file", "a full file system"),
        *("no inodes left", "a file that is open and has no name"),
        *("the numbers of files that are gone", "a file in flight between two sockets"),
    ),
    "no folder can be made in /dev/shm": ("a folder that nobody may enter",),
    "cells share /dev/shm, and so the names there": (
        *("a file in /dev/shm", "POSIX shared memory", "a POSIX semaphore"),
    ),
    "nobody numbers what is refused": ("numbers of System V objects that are gone",),
    "a program sees no processes in /proc": (
        *("descriptors", "epoll, eventfd and timerfd", "a thread", "locked memory"),
        *("a process's name and attributes", "a child that is stopped"),
        "a child that was detached twice",
    ),
    "a program sees no network in /proc, and its servers are beside the machine's": (
        *("a port in TIME_WAIT", "a port that cannot be bound", "counters of TCP"),
        *("counters of the loopback device", "counters of UDP", "a UDP port"),
        *("counters of broken connections", "a TCP listener", "a multicast group"),
        *("a connection that is half open", "/proc/sys/net/ipv4/ip_default_ttl"),
    ),
    "these are the machine's, and numbered on": (
        *("process numbers that were used", "a pseudo-terminal"),
    ),
    "it cannot be bound": ("an abstract socket",),
}
"""Names of kinds that are not there, by the reason."""

_FOLDERS = """
import os
_work, _tmp = os.environ["HOME"], os.environ["TMPDIR"]
"""
_MEANT = {
    "b'/work": "os.fsencode(_work) + b'",
    "b'/tmp": "os.fsencode(_tmp) + b'",
    "'/work": "_work + '",
    "'/tmp": "_tmp + '",
}


def with_its_folders(code: str) -> str:
    """Return a program that means its cell's folders where it names /work and /tmp."""
    for named, meant in _MEANT.items():
        code = code.replace(named, meant)
    return f"{_FOLDERS}{code}"
