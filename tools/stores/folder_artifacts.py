"""A folder of the host as the place for artifacts of calls."""

from __future__ import annotations

import hashlib
from pathlib import Path

from toolcell.sandbox import Artifact
from toolcell.sandbox.spi import save_artifact


class FolderArtifacts:
    """An artifact sink that writes files; a reference is the path of one.

    Args:
        folder: The folder; it is made if it is missing.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def save(self, name: str, data: bytes, media_type: str) -> str:
        """Write a new file below the folder.

        Raises:
            InvalidInputError: The name leads out of the folder, or the file cannot be
                written.
        """
        artifact = Artifact(
            name=name,
            mime=media_type,
            data=data,
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        return str(save_artifact(artifact, self._folder))
