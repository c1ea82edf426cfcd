"""Opens the SQLite files of a host's own state."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from toolcell.core import ConfigError, StoreUnavailableError
from toolcell.core.storage.sqlite import SharedDatabase, open_sqlite

_BUSY_SECONDS = 2.0


def open_state_file(
    path: Path,
    prepare: Callable[[SharedDatabase], object],
    *,
    synchronous: Literal["NORMAL", "FULL"] = "FULL",
) -> SharedDatabase:
    """Open a file of `state.folder`.

    Args:
        path: The file, in an existing folder.
        prepare: Makes or checks the tables.
        synchronous: `FULL`, the default: what is written survives a loss of power.
            `NORMAL`: the last of it may not.

    Raises:
        ConfigError: The file cannot be used.
    """
    try:
        return open_sqlite(
            path, prepare, synchronous=synchronous, busy_seconds=_BUSY_SECONDS
        )
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(
            f"{path} cannot be used: {error}",
            hint="set state.folder to one that this user may write, and make room",
        ) from None


def secret_hash(secret: str) -> bytes:
    """Return the hash of a secret; one of 128 random bits needs no slow hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


class StateFile:
    """A file of a host's state, which several processes share.

    Args:
        file: The file, as `open_state_file` returns it.
        content: The name of what it holds, for errors.
    """

    def __init__(self, file: SharedDatabase, content: str) -> None:
        self._file = file
        self._content = content

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows.

        Raises:
            StoreUnavailableError: The file cannot be read or written, or was removed.
            sqlite3.IntegrityError: The tables do not allow it.
        """
        try:
            self._file.check_place()
            return self._file.execute(statement, values).fetchall()
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise StoreUnavailableError(f"{self._content}: {error}") from error
