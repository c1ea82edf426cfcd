"""Temporary folders of this process, which are found when it has ended without them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

from . import process_identity

PREFIX = "toolcell_"


def folder_prefix() -> str:
    """Return the beginning of a temporary folder's name, for `tempfile`.

    A folder that a killed process left is removed by the next `NodeAgent` of this
    machine, and by `clean`.
    """
    return f"{_mark()}{process_identity.this_process()}_"


def _mark() -> str:
    # A container may share the folder, and has other processes of the same numbers.
    namespace = 0
    with contextlib.suppress(OSError):
        namespace = process_identity.pid_namespace()
    return f"{PREFIX}{namespace}-"


def all_folders() -> list[Path]:
    """Return the temporary folders of all processes of toolcell."""
    return list(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))


def sweep_folders() -> tuple[list[str], list[str]]:
    """Remove the folders of dead processes of this PID namespace.

    Returns:
        The removed folders, and those that could not be removed.
    """
    removed: list[str] = []
    left: list[str] = []
    mark = _mark()
    for path in all_folders():
        if path.is_symlink() or not path.name.startswith(mark):
            continue
        # The rest of the name is random, and may hold the separator, too.
        process = path.name.removeprefix(mark).partition("_")[0]
        if not process_identity.lives(process):
            shutil.rmtree(path, ignore_errors=True)
            (left if path.exists() else removed).append(str(path))
    return removed, left
