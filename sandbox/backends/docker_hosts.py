"""The /etc/hosts of containers: without a network their engine provides none."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile

from ..config.mount_rules import Bind
from ..machine.own_folders import folder_prefix

_TARGET = "/etc/hosts"


class HostsFile:
    """The hosts file in a folder of this machine, for engines that share its files.

    Args:
        text: It.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._folder = ""
        self._shown = False

    def make(self) -> None:
        """Write the file; if that fails, cells have none."""
        with contextlib.suppress(OSError):
            self._folder = tempfile.mkdtemp(prefix=folder_prefix())
            # The engine may be another user.
            os.chmod(self._folder, 0o755)  # noqa: S103 - it holds nothing secret
            with open(self._path, "w", encoding="utf-8") as file:
                file.write(self._text)
            os.chmod(self._path, 0o644)
            self._shown = True

    @property
    def _path(self) -> str:
        return f"{self._folder}/hosts"

    def binds(self) -> list[Bind]:
        """Return the mount of the file; empty if there is no file."""
        return [Bind(self._path, _TARGET, read_only=True)] if self._shown else []

    def is_to_blame(self, error: Exception) -> bool:
        """Return True if an engine refused the file, as it has other files.

        This also holds for a cell that was begun before the file was removed.
        """
        return bool(self._folder) and self._path in str(error)

    def remove(self) -> None:
        """Remove the file; running containers keep it."""
        self._shown = False
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
