"""Empties the folders that programs can write to, and proves that nothing is left.

It is for cells whose file systems cannot be mounted anew. No process of a program is
left then, so nothing changes meanwhile. All that programs made is their user's, who can
also take it away.
"""

from __future__ import annotations

import errno
import os
import time

from .path_steps import DIRECTORY, acting_as

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Folders:
    """Folders that are empty now, and can be made so again.

    Args:
        paths: The folders; those that do not exist are left out.
        uid: The programs' user.
        alone: True if nobody but the cell writes to their file systems.
    """

    def __init__(self, paths: list[str], uid: int, *, alone: bool = True) -> None:
        self._uid = uid
        self._alone = alone
        with acting_as(uid):
            self._before = {
                path: self._state(path) for path in paths if os.path.isdir(path)
            }

    def empty(self, until: float) -> None:
        """Remove all that programs left.

        Args:
            until: When to give up, by `time.monotonic`.

        Raises:
            OSError: Something is left, or the time is over.
        """
        with acting_as(self._uid):
            for path, before in self._before.items():
                if os.stat(path).st_uid == self._uid:
                    os.chmod(path, before["mode"] & 0o7777)
                    for name in _attributes(path):
                        os.removexattr(path, name)
                remove_all_in(path, until)
                os.utime(path)
                if self._state(path) != before:
                    raise OSError(errno.ENOTEMPTY, "something is left", path)

    def _state(self, path: str) -> dict[str, Any]:
        """Return what a program can change about a folder and its file system."""
        facts, space = os.stat(path), os.statvfs(path)
        return {
            "mode": facts.st_mode,
            "owner": (facts.st_uid, facts.st_gid),
            "attributes": _attributes(path),
            "names": os.listdir(path),
            # Files without a name take space, too.
            "free": (space.f_bfree, space.f_ffree) if self._alone else (),
        }


def _attributes(path: str) -> list[str]:
    try:
        return os.listxattr(path)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return []
        raise


def remove_all_in(path: str, until: float) -> None:
    """Remove all files and folders, of any depth, without a path that grows.

    Args:
        path: The folder that they are in.
        until: When to give up, by `time.monotonic`.

    Raises:
        OSError: Something is left, or the time is over.
    """
    here = os.open(path, DIRECTORY)
    try:
        # For each step down the folders that are yet to be removed.
        levels = [_remove_most_in(here, until)]
        while True:
            if levels[-1]:
                here = _go(here, levels[-1][-1])
                levels.append(_remove_most_in(here, until))
            else:
                levels.pop()
                if not levels:
                    return
                here = _go(here, "..")
                os.rmdir(levels[-1].pop(), dir_fd=here)
    finally:
        os.close(here)


def _go(here: int, name: str) -> int:
    if name != "..":
        os.chmod(name, 0o700, dir_fd=here)
    there = os.open(name, DIRECTORY, dir_fd=here)
    os.close(here)
    return there


def _remove_most_in(folder: int, until: float) -> list[str]:
    """Remove files and empty folders; return the names of the other folders."""
    others = []
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if time.monotonic() > until:
            raise OSError(errno.ETIMEDOUT, "the time is over")
        try:
            if is_folder:
                os.rmdir(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)
        except OSError as error:
            if not is_folder or error.errno != errno.ENOTEMPTY:
                raise
            others.append(name)
    return others
