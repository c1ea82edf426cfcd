"""Locks on files, which tasks, threads and processes may want at once."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import anyio

_LOOK_SECONDS = 0.05


def try_lock(path: Path, *, shared: bool = False) -> int | None:
    """Return a descriptor that holds the lock of a file; None if it is taken.

    The lock is free when the descriptor is closed here and in all forked processes.
    The file is made if it is missing.

    Raises:
        OSError: It cannot be opened or locked.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return fd


async def lock(path: Path, *, shared: bool = False) -> int:
    """Wait for the lock of a file; see `try_lock`."""
    while (held := try_lock(path, shared=shared)) is None:  # noqa: ASYNC110 - no event
        await anyio.sleep(_LOOK_SECONDS)
    return held
