"""Artifacts of programs, written to files of the host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from toolcell.core.text.printable import escaped_line

from .download import create_local
from .file_errors import host_error
from .workdir import checked_path

if TYPE_CHECKING:
    from ..results.result import Artifact


def save_artifact(artifact: Artifact, folder: Path) -> Path:
    """Write an artifact below a folder of the host, and return where.

    Args:
        artifact: An artifact of a run; the program chose its name, of which hidden
            characters are written out (`\\u{1b}`).
        folder: The folder; made if it is missing. Only the host should be able to
            write there.

    Raises:
        InvalidInputError: The name leads elsewhere, or the file cannot be written; then
            no part of it is left. A file that stands there is not replaced.
    """
    place = Path(folder, escaped_line(checked_path(artifact.name)))
    try:
        with open(create_local(place, executable=False), "wb") as file:
            try:
                file.write(artifact.data)
                file.flush()
            except OSError:
                place.unlink()
                raise
    except OSError as error:
        raise host_error(f"cannot write {place}", error) from None
    return place
