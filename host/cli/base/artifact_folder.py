"""A new folder for the artifacts of a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from toolcell.core import InvalidInputError


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
