"""Stores the lines that a person typed, for the next session."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolcell.core import InvalidInputError

MAX_LINES = 1_000
"""Lines in the file. When it is reached the oldest are deleted."""


def default_history() -> Path:
    """Return the file for the history of this user."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state, "toolcell", "history").expanduser()


@contextmanager
def stored_history(path: Path) -> Iterator[None]:
    """Let lines be edited and recalled; the file is for this user alone.

    Where standard input is no terminal nothing is read or stored.

    Raises:
        InvalidInputError: The file cannot be used.
    """
    if not sys.stdin.isatty():
        yield
        return
    import readline

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        readline.read_history_file(path)
    except OSError as error:
        raise InvalidInputError(
            f"the history {path} cannot be used: {error.strerror}",
            hint="name another file with --history",
        ) from None
    readline.set_history_length(MAX_LINES)
    readline.parse_and_bind("tab: self-insert")
    try:
        yield
    finally:
        readline.write_history_file(path)
        path.chmod(0o600)
