"""Sends the files in a program's `artifacts` folder to the host, one by one."""

from __future__ import annotations

import os
import time
from binascii import crc32

from ..wire.contract import ARTIFACTS
from ..wire.frames import COLLECT_SECONDS, MAX_ARTIFACT_BYTES, MAX_ARTIFACTS, encode
from .file_tree import MAX_LISTED, LeftOut, Tree
from .path_steps import FileProblem, acting_as, open_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

    from ..wire.channel import SupervisorChannel

    State = Tuple[int, int, int, int]


_PIECE_BYTES = 256 * 1024
_TICK_NS = 50_000_000


class _Known:
    """The state of a file when it was last examined."""

    __slots__ = ("checksum", "kind", "settled", "state")

    def __init__(self, kind: str, state: State) -> None:
        self.kind = kind
        self.state = state
        # A change within the same tick of the file system's clock would not show.
        self.settled = time.time_ns() - state[-1] > _TICK_NS
        self.checksum: int | None = None


class Seen:
    """The artifacts that the host knows of, by work dir: only changed ones are sent.

    Links and devices are never sent, and named when they are new.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[str, _Known]] = {}

    def copy(self, folder: str, origin: str, uid: int | None) -> None:
        """Count the files of a new branch as sent, as those of its origin were."""
        now = _look(folder, uid, time.monotonic() + COLLECT_SECONDS, LeftOut())
        before = self._known.get(origin, {})
        for name, known in now.items():
            if name in before:
                known.checksum = before[name].checksum
        self._known[folder] = now

    def forget(self, folder: str) -> None:
        """Forget a work dir that no longer exists."""
        self._known.pop(folder, None)

    def news(
        self, folder: str, uid: int | None, until: float, left: LeftOut
    ) -> dict[str, _Known]:
        """Return the files that are, or may be, new or changed; record all as seen."""
        now = _look(folder, uid, until, left)
        before = self._known.get(folder, {})
        self._known[folder] = now
        news = {}
        for name, known in now.items():
            old = before.get(name)
            if known.kind != "file":
                if old is None or old.kind != known.kind:
                    left.add(f"{name} (a {known.kind})")
                continue
            if old is None or old.state != known.state:
                news[name] = known
                continue
            known.checksum = old.checksum
            if not old.settled:
                news[name] = known
        return news


def send(folder: str, uid: int | None, channel: SupervisorChannel, seen: Seen) -> None:
    """Send the new and changed files, and the names of those that were left out.

    Args:
        folder: The program's work dir.
        uid: The program's user; None for the user of this process.
        channel: Leads to the host.
        seen: The artifacts of earlier runs.
    """
    until = time.monotonic() + COLLECT_SECONDS
    left = LeftOut()
    sent, room = 0, MAX_ARTIFACT_BYTES
    for name, known in seen.news(folder, uid, until, left).items():
        fd, size = None, 0
        if sent < MAX_ARTIFACTS and time.monotonic() < until:
            fd, size = _open(folder, name, uid, room)
        if fd is None:
            left.add(name)
            continue
        began = time.monotonic()
        before, known.checksum = known.checksum, _checksum(fd, size)
        if known.checksum != before:
            if not _carry(fd, name, size, channel):
                left.add(name)
            sent, room = sent + 1, room - size
        os.close(fd)
        # The time that the host takes to read is not charged to the program.
        until += time.monotonic() - began
    channel.send(encode({"type": "collected", "left": left.names, "more": left.more}))


def _look(
    folder: str, uid: int | None, until: float, left: LeftOut
) -> dict[str, _Known]:
    try:
        with acting_as(uid):
            tree = Tree(folder, [ARTIFACTS], until, left, _state)
    except FileNotFoundError:
        return {}
    except (OSError, FileProblem) as error:
        left.add(f"{ARTIFACTS}: {error}")
        return {}
    if not tree.whole:
        left.add(f"what is beyond {MAX_LISTED} entries or {COLLECT_SECONDS:g} seconds")
    return {
        tree.path(number): _Known(kind, state)
        for number, (_, _, kind, state) in enumerate(tree.found, 1)
        if kind != "folder"
    }


def _state(found: os.stat_result) -> State:
    """Return values that change with a file; programs cannot set the last one."""
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _checksum(fd: int, size: int) -> int:
    checksum = 0
    for offset in range(0, size, _PIECE_BYTES):
        try:
            checksum = crc32(os.pread(fd, _PIECE_BYTES, offset), checksum)
        except OSError:
            break
    return checksum


def _open(folder: str, name: str, uid: int | None, room: int) -> tuple[int | None, int]:
    """Open a file; return its descriptor, None if it may not be sent, and its size."""
    try:
        with acting_as(uid):
            fd = open_file(folder, f"{ARTIFACTS}/{name}", os.O_RDONLY)
    except (OSError, FileProblem):
        return None, 0
    found = os.fstat(fd)
    # Its other names may be where the program itself cannot read.
    if found.st_nlink != 1 or found.st_size > room:
        os.close(fd)
        return None, 0
    return fd, found.st_size


def _carry(fd: int, name: str, size: int, channel: SupervisorChannel) -> bool:
    """Send a file piece by piece; False if it shrank meanwhile and is incomplete."""
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
