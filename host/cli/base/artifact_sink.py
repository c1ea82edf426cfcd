"""A sink that writes artifacts into a folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

from toolcell.sandbox import Artifact
from toolcell.sandbox.spi import save_artifact


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
