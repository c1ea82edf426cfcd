"""Finds what has changed below a folder, by looking at it again and again.

There is no inotify in cells. A look is made of small steps, so that what else this
process serves need not wait, and ends when the folder holds more than it may. It is
made as the program's user, step by step (see `path_steps`).
"""

from __future__ import annotations

import os
import stat
import time

from .path_steps import MAX_DEPTH, FileProblem, acting_as, open_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Dict, Tuple

    # Kind, device and inode: what makes it the same thing; then mode, size, time.
    State = Tuple[str, int, int, int, int, int]
    States = Dict[str, State]
    # Kind of change, path, new path of what was renamed, kind of entry.
    Change = Tuple[str, str, str, str]

MAX_WATCHED = 10_000
"""Entries of a folder that is watched. When it is exceeded the watch ends."""

MAX_WATCHED_BYTES = 2 * 1024 * 1024
"""Bytes of their paths together. When it is exceeded the watch ends."""

_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}


class WatchedFolder:
    """A folder, as it was at the last look, and the look that is under way.

    Args:
        folder: The start of its path.
        parts: The steps of its path below that.
        recursive: True if all that is below it counts, not its own entries alone.
        uid: The user to look as; None is this process's own.
    """

    def __init__(
        self, folder: str, parts: list[str], recursive: bool, uid: int | None
    ) -> None:
        self._folder = folder
        self._parts = parts
        self._recursive = recursive
        self._uid = uid
        self._seen: States | None = None
        self._now: States = {}
        self._bytes = 0
        self._look: Generator[None, None, None] | None = None
        self.spent = 0.0
        """Seconds that the last look took."""

    def go_on(self, seconds: float) -> list[Change] | None:
        """Look for at most so long; return the changes, None before the look is done.

        The first look finds no changes.

        Raises:
            OSError: At the first look: the folder cannot be listed.
            FileProblem: The folder holds too much, or its path leads over a link.
        """
        if self._look is None:
            self._look, self._now, self.spent = self._steps(), {}, 0.0
        began = time.monotonic()
        with acting_as(self._uid):
            for _ in self._look:
                if time.monotonic() - began > seconds:
                    self.spent += time.monotonic() - began
                    return None
        self.spent += time.monotonic() - began
        self._look = None
        before, self._seen = self._seen, self._now
        return [] if before is None else changes(before, self._seen)

    def _steps(self) -> Generator[None, None, None]:
        self._bytes = 0
        waiting = [""]
        while waiting:
            inner = waiting.pop()
            try:
                fd = open_folder(self._folder, [*self._parts, *_split(inner)])
            except (OSError, FileProblem):
                # At the first look its caller has to know. Later it counts as empty.
                if not inner and self._seen is None:
                    raise
                continue
            try:
                yield from self._entries(fd, inner, waiting)
            finally:
                os.close(fd)

    def _entries(
        self, fd: int, inner: str, waiting: list[str]
    ) -> Generator[None, None, None]:
        with os.scandir(fd) as entries:
            for entry in entries:
                yield
                try:
                    found = entry.stat(follow_symlinks=False)
                    path = os.path.join(inner, entry.name)
                    self._bytes += len(path.encode())
                except (OSError, UnicodeEncodeError):
                    # Gone, or a name that no path of the host can have.
                    continue
                self._now[path] = state = _state(found)
                if len(self._now) > MAX_WATCHED:
                    raise FileProblem(f"more than {MAX_WATCHED} entries", "too_many")
                if self._bytes > MAX_WATCHED_BYTES:
                    why = f"paths of more than {MAX_WATCHED_BYTES} bytes"
                    raise FileProblem(why, "too_many")
                deep = len(self._parts) + path.count("/") + 1 >= MAX_DEPTH
                if self._recursive and state[0] == "folder" and not deep:
                    waiting.append(path)


def _split(path: str) -> list[str]:
    return path.split("/") if path else []


def _state(found: os.stat_result) -> State:
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "other")
    # The size and time of a folder change with its entries, reported themselves.
    size, written = found.st_size, found.st_mtime_ns
    if kind == "folder":
        size = written = 0
    mode = stat.S_IMODE(found.st_mode)
    return kind, found.st_dev, found.st_ino, mode, size, written


def changes(before: States, after: States) -> list[Change]:
    """Return what has happened between two looks, as far as they can tell.

    What was made and removed between them is not seen. A path whose file was replaced
    by another one counts as written.
    """
    renamed = _renamed(before, after)
    arrived = set(renamed.values())
    found: list[Change] = []
    for path in sorted(before, reverse=True):
        kind = before[path][0]
        stays = path in after and after[path][0] == kind
        if not stays and path not in renamed:
            found.append(("removed", path, "", kind))
    for path in sorted(renamed):
        to = renamed[path]
        if not _moved_along(path, to, renamed):
            found.append(("renamed", path, to, after[to][0]))
    for path in sorted(after):
        if path not in arrived:
            found += _news(path, before.get(path), after[path])
    return found


def _renamed(before: States, after: States) -> dict[str, str]:
    """Return the new paths of things that are at another path now."""
    gone = {}
    for path, state in before.items():
        if path not in after or after[path][:3] != state[:3]:
            gone[state[:3]] = path
    renamed = {}
    for path, state in after.items():
        old = before.get(path)
        if old is not None and old[:3] == state[:3]:
            continue
        origin = gone.get(state[:3])
        # Numbers of inodes are used again, but not with the same times.
        if origin is not None and before[origin][5] == state[5]:
            renamed[origin] = path
            del gone[state[:3]]
    return renamed


def _moved_along(path: str, to: str, renamed: dict[str, str]) -> bool:
    """Tell whether a path is another one only because its folder is."""
    (parent, name), (new_parent, new_name) = os.path.split(path), os.path.split(to)
    return name == new_name and renamed.get(parent) == new_parent


def _news(path: str, before: State | None, after: State) -> list[Change]:
    kind, _, _, mode, size, written = after
    if before is None or before[0] != kind:
        found: list[Change] = [("created", path, "", kind)]
        if kind == "file" and size:
            found.append(("written", path, "", kind))
        return found
    found = []
    replaced = kind != "folder" and before[:3] != after[:3]
    if replaced or before[4:] != (size, written):
        found.append(("written", path, "", kind))
    if before[3] != mode:
        found.append(("chmod", path, "", kind))
    return found
