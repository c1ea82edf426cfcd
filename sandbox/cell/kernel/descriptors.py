"""Passes descriptors over Unix sockets, without Python 3.9's help, and moves them."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct

_HIGHEST = 1024
# Process, user and group.
_CREDENTIALS = struct.Struct("3i")
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


def read_from(fd: int, size: int, sender: int) -> bytes | None:
    """Read what one process wrote into a socket that others may hold, too.

    The kernel says who wrote, and hands over no bytes of two processes at once.

    Args:
        fd: A Unix stream socket with `SO_PASSCRED`.
        size: The most bytes to read.
        sender: The process; 0 for any, and then `fd` may be a pipe, too.

    Returns:
        Its bytes, empty at the end; None if another process wrote them.

    Raises:
        OSError: As `os.read`.
    """
    if not sender:
        return os.read(fd, size)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=fd)
    try:
        room = socket.CMSG_SPACE(_CREDENTIALS.size)
        data, ancillary, _, _ = sock.recvmsg(size, room)
    finally:
        sock.detach()
    for level, kind, packed in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            writer = _CREDENTIALS.unpack(packed)[0]
            # gVisor names the thread.
            own = writer == sender or os.path.exists(f"/proc/{sender}/task/{writer}")
            return data if own or not data else None
    return data if not data else None


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

    What goes wrong in the fork is written there.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(2):
        os.dup2(null, fd)
    first = 3
    for fd in (*sorted(fd for fd in kept if fd >= first), _HIGHEST):
        os.closerange(first, fd)
        first = fd + 1


def output_pipe(uid: int | None) -> tuple[int, int]:
    """Return both ends of a pipe that a user may open anew, as /dev/stdout.

    Args:
        uid: The user; None for that of this process.
    """
    read_fd, write_fd = os.pipe()
    try:
        os.fchmod(write_fd, 0o622)
        return read_fd, write_fd
    except OSError:
        if uid is None:
            return read_fd, write_fd
    # gVisor has no modes of pipes, but owners.
    os.close(read_fd)
    os.close(write_fd)
    own = os.geteuid()
    os.seteuid(uid)
    try:
        return os.pipe()
    finally:
        os.seteuid(own)


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
