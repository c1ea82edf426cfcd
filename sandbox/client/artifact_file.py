"""Artifacts of programs, written to files of the host."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from toolcell.core.text.printable import escaped_line

from .file_errors import host_error
from .workdir import checked_path

if TYPE_CHECKING:
    from ..results.result import Artifact

MAX_SAME_NAMES = 1_000
"""Files of one name in a folder, numbers added. When it is reached no more are
written."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def save_artifact(artifact: Artifact, folder: Path) -> Path:
    """Write an artifact below a folder of the host, and return where.

    A file that stands there is not replaced: `a.png` becomes `a-2.png`. Links below the
    folder are not followed, so that a cell may see the folder as a mount.

    Args:
        artifact: An artifact of a run; the program chose its name, of which hidden
            characters are written out (`\\u{1b}`).
        folder: The folder; made if it is missing.

    Raises:
        InvalidInputError: The name leads elsewhere, or the file cannot be written; then
            no part of it is left.
    """
    path = PurePosixPath(escaped_line(checked_path(artifact.name)))
    try:
        parent = _open_folder(folder, path.parent.parts)
        try:
            return Path(folder, path.parent, _write_new(parent, path, artifact.data))
        finally:
            os.close(parent)
    except OSError as error:
        raise host_error(f"cannot write {Path(folder, path)}", error) from None


def _open_folder(folder: Path, below: tuple[str, ...]) -> int:
    """Open a folder of the host, or one below it; make those that are missing."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(folder, _FOLDER)
    for name in below:
        outer = fd
        try:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=outer)
            fd = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=outer)
        finally:
            os.close(outer)
    return fd


def _write_new(parent: int, path: PurePosixPath, data: bytes) -> str:
    """Write a file of this name, or of the next that is free; return its name."""
    name, fd = _create(parent, path)
    try:
        with open(fd, "wb") as file:
            file.write(data)
    except OSError:
        os.unlink(name, dir_fd=parent)
        raise
    return name


def _create(parent: int, path: PurePosixPath) -> tuple[str, int]:
    name, number = path.name, 1
    while True:
        try:
            return name, os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
        except FileExistsError:
            if number == MAX_SAME_NAMES:
                raise
            number += 1
            name = f"{path.stem}-{number}{path.suffix}"
