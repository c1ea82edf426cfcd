"""What a program leaves in its `artifacts` folder, for the host, file by file."""

from __future__ import annotations

import os
import time

from .files import (
    ARTIFACTS,
    MAX_LISTED,
    FileProblem,
    LeftOut,
    Tree,
    acting_as,
    open_file,
)
from .frames import COLLECT_SECONDS, MAX_ARTIFACT_BYTES, MAX_ARTIFACTS, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .host_channel import Channel


_PIECE_BYTES = 256 * 1024


def send(folder: str, uid: int | None, channel: Channel) -> None:
    """Send the files, and the names of those that were left out.

    Args:
        folder: The program's work dir.
        uid: The program's user; None is the own one.
        channel: Leads to the host.
    """
    until = time.monotonic() + COLLECT_SECONDS
    left = LeftOut()
    sent, room = 0, MAX_ARTIFACT_BYTES
    for name in _names(folder, uid, until, left):
        fd, size = None, 0
        if sent < MAX_ARTIFACTS and time.monotonic() < until:
            fd, size = _open(folder, name, uid, room)
        if fd is None:
            left.add(name)
            continue
        began = time.monotonic()
        if not _carry(fd, name, size, channel):
            left.add(name)
        os.close(fd)
        sent, room = sent + 1, room - size
        # How long the host takes to read is not the program's time.
        until += time.monotonic() - began
    channel.send(encode({"type": "collected", "left": left.names}))


def _names(folder: str, uid: int | None, until: float, left: LeftOut) -> Iterator[str]:
    try:
        with acting_as(uid):
            tree = Tree(folder, [ARTIFACTS], until, left, sizes=False)
    except (OSError, FileProblem):
        return
    if not tree.whole:
        left.add(f"what is beyond {MAX_LISTED} entries or {COLLECT_SECONDS:g} seconds")
    for number, (_, _, kind, _) in enumerate(tree.found, 1):
        if kind == "file":
            yield tree.path(number)


def _open(folder: str, name: str, uid: int | None, room: int) -> tuple[int | None, int]:
    """Open a file that may be sent; return its descriptor, if it may, and its bytes."""
    try:
        with acting_as(uid):
            fd = open_file(folder, f"{ARTIFACTS}/{name}", os.O_RDONLY)
    except (OSError, FileProblem):
        return None, 0
    found = os.fstat(fd)
    # Another name may lead to it from where the program cannot read.
    if found.st_nlink != 1 or found.st_size > room:
        os.close(fd)
        return None, 0
    return fd, found.st_size


def _carry(fd: int, name: str, size: int, channel: Channel) -> bool:
    """Send a file piece by piece; False if it has changed and its end is missing."""
    header = {"type": "artifact", "name": name, "size": size}
    for offset in range(0, max(size, 1), _PIECE_BYTES):
        wanted = min(_PIECE_BYTES, size - offset)
        try:
            piece = os.pread(fd, wanted, offset)
        except OSError:
            return False
        if len(piece) < wanted:
            return False
        channel.send(encode(header, piece))
    return True
