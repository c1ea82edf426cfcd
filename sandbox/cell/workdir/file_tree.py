"""Lists what is below a folder of the work dir, within bounds on time and memory."""

from __future__ import annotations

import os
import time

from .path_steps import MAX_DEPTH, FileProblem, open_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Callable


_MAX_PATH_BYTES = 4096
_MAX_NAMED = 100
_MAX_NAMED_BYTES = 16 * 1024

MAX_LISTED = 10_000
"""Entries below a folder. When it is reached a listing is refused, and artifacts are
collected from the entries seen so far."""


class LeftOut:
    """Names of files that were left out, bounded in number and size.

    Attributes:
        names: The first names.
        more: The number of further ones.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.more = 0
        self._room = _MAX_NAMED_BYTES

    def add(self, name: str) -> None:
        """Add a name; bytes that are not UTF-8 are shown as `\\xff`."""
        text = os.fsencode(name).decode("utf-8", "backslashreplace")
        self._room -= len(text.encode())
        if self._room >= 0 and len(self.names) < _MAX_NAMED:
            self.names.append(text)
        else:
            self.more += 1


class Tree:
    """The entries below a folder, as far as the bounds allow.

    Entries are left out whose names are not UTF-8, or whose paths are deeper or longer
    than a path of the host may be.

    Args:
        folder: A work dir.
        parts: The folder to list, as the steps of a path below the work dir.
        until: The end of the search, by `time.monotonic`.
        left: Receives the names of entries that are left out.
        measure: Turns an entry's lstat(2) result into the last field in `found`.

    Raises:
        OSError: The folder cannot be listed.
        FileProblem: A step of its path is a link.
    """

    def __init__(
        self,
        folder: str,
        parts: list[str],
        until: float,
        left: LeftOut,
        measure: Callable[[os.stat_result], Any],
    ) -> None:
        self.found: list[tuple[int, str, str, Any]] = []
        """Entries: the number of the parent folder, name, kind, and measure. Numbers
        start with 1; 0 is the folder itself."""
        self.whole = True
        """False if time or the number of entries ran out."""
        self._folder = folder
        self._parts = parts
        self._until = until
        self._left = left
        self._measure = measure
        self._seen = 0
        self._look_into(0)
        # The list grows while folders are found.
        for number, (_, _, kind, _) in enumerate(self.found, 1):
            if kind == "folder" and self.whole:
                try:
                    self._look_into(number)
                except PermissionError:
                    self._left.add(self.path(number) + "/")
                except (OSError, FileProblem):
                    # Gone, or something else by now.
                    continue

    def path(self, number: int) -> str:
        """Return the path of an entry below the folder."""
        return "/".join(self._steps(number))

    def _steps(self, number: int) -> list[str]:
        steps = []
        while number:
            number, name, _, _ = self.found[number - 1]
            steps.append(name)
        return steps[::-1]

    def _look_into(self, number: int) -> None:
        steps = [*self._parts, *self._steps(number)]
        if len(steps) >= MAX_DEPTH:
            self._left.add(self.path(number) + "/")
            return
        room = _MAX_PATH_BYTES - sum(len(step.encode()) for step in steps)
        fd = open_folder(self._folder, steps)
        try:
            # gVisor lists some names twice while others come and go.
            entries = {name: (kind, known) for name, kind, known in self._entries(fd)}
        finally:
            os.close(fd)
        for name, (kind, known) in sorted(entries.items()):
            if len(os.fsencode(name)) > room or not _is_text(name):
                self._left.add("/".join([*self._steps(number), name]))
            else:
                self.found.append((number, name, kind, known))

    def _entries(self, fd: int) -> Iterator[tuple[str, str, Any]]:
        with os.scandir(fd) as entries:
            for entry in entries:
                self._seen += 1
                if self._seen > MAX_LISTED or time.monotonic() > self._until:
                    self.whole = False
                    return
                try:
                    known = self._measure(entry.stat(follow_symlinks=False))
                    yield entry.name, _kind(entry), known
                except OSError:
                    continue


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"
