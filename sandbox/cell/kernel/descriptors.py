"""Passes descriptors over Unix sockets, without Python 3.9's help, and moves them."""

from __future__ import annotations

import array
import fcntl
import os
import socket

_HIGHEST = 1024
_FIRST_ASIDE = 16


def send_fds(sock: socket.socket, data: bytes, fds: list[int]) -> None:
    """Send bytes and descriptors in one message. Raises OSError."""
    packed = array.array("i", fds)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)] if fds else []
    sock.sendmsg([data], rights)


def receive_fds(sock: socket.socket, size: int, count: int) -> tuple[bytes, list[int]]:
    """Receive bytes and at most `count` descriptors. Raises OSError."""
    fds = array.array("i")
    room = socket.CMSG_SPACE(count * fds.itemsize)
    data, ancillary, _, _ = sock.recvmsg(size, room)
    for level, kind, packed in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(packed[: len(packed) - len(packed) % fds.itemsize])
    return data, fds.tolist()


def put_aside(fd: int) -> int:
    """Give a descriptor a number that none of a program's own gets; return it."""
    aside = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_ASIDE)
    os.close(fd)
    return aside


def close_from(first: int, but: int = -1) -> None:
    """Close all descriptors from a number on, but for one."""
    if but < first:
        os.closerange(first, _HIGHEST)
    else:
        os.closerange(first, but)
        os.closerange(but + 1, _HIGHEST)


def keep_only(kept: set[int]) -> None:
    """Close all that a fork inherited but these, and standard error.

    What goes wrong in the fork is told there.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(2):
        os.dup2(null, fd)
    for fd in range(3, _HIGHEST):
        if fd not in kept:
            try:
                os.close(fd)
            except OSError:
                continue


def move_fds(sources: list[int], inherited: int) -> None:
    """Make `sources` the descriptors 0, 1, 2, ...

    Args:
        sources: Open descriptors; they stay open.
        inherited: Targets below this number outlive an exec.
    """
    # First out of the way, then into place: a source may have a target's number.
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, len(sources)) for fd in sources]
    for target, fd in enumerate(moved):
        os.dup2(fd, target, inheritable=target < inherited)
        os.close(fd)
