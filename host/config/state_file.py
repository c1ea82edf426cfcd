"""Opens the SQLite files of a host's own state."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from toolcell.core import ConfigError
from toolcell.core.storage.sqlite import SharedDatabase, open_sqlite

_BUSY_SECONDS = 2.0


def open_state_file(
    path: Path, prepare: Callable[[SharedDatabase], object]
) -> SharedDatabase:
    """Open a file of `state.folder`; what is written to it survives a loss of power.

    Args:
        path: The file, in an existing folder.
        prepare: Makes or checks the tables.

    Raises:
        ConfigError: The file cannot be used.
    """
    try:
        return open_sqlite(
            path, prepare, synchronous="FULL", busy_seconds=_BUSY_SECONDS
        )
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(
            f"{path} cannot be used: {error}",
            hint="set state.folder to one that this user may write, and make room",
        ) from None
