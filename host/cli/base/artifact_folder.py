"""A new folder for the artifacts of a command."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from toolcell.core import InvalidInputError
from toolcell.sandbox import Artifact
from toolcell.sandbox.spi import save_artifact


@contextmanager
def new_folder(path: Path | None) -> Iterator[None]:
    """Make the folder for artifacts; remove it after an error if it is empty.

    Raises:
        InvalidInputError: The folder exists, or cannot be made.
    """
    if path is None:
        yield
        return
    try:
        path.mkdir(mode=0o700)
    except OSError as error:
        raise InvalidInputError(
            f"cannot make the folder {path}: {error.strerror}", hint="name a new one"
        ) from None
    try:
        yield
    except BaseException:
        drop_if_empty(path)
        raise


def drop_if_empty(path: Path) -> None:
    """Remove an empty folder, so that the next attempt can make it."""
    with suppress(OSError):
        path.rmdir()


class FolderArtifacts:
    """An artifact sink that writes files; a reference is the path of one.

    Args:
        folder: A folder that only the host should be able to write; made if missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, name: str, data: bytes, media_type: str) -> str:
        """Write a file below the folder.

        Raises:
            InvalidInputError: The name leads out of the folder, or the file exists.
        """
        artifact = Artifact(
            name=name,
            mime=media_type,
            data=data,
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        return str(save_artifact(artifact, self._folder))
