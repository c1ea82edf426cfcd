"""Keeps the policies of a running guard up to date with their file."""

from __future__ import annotations

import logging
import os

import anyio
import anyio.to_thread

from toolcell.core import PolicyError

from ..policy.files import load_policies
from .guard import ActionGuard

_log = logging.getLogger("toolcell.guard")


async def watch_policies(
    guard: ActionGuard, path: str | os.PathLike[str], *, interval: float = 1.0
) -> None:
    """Put a policy file in force whenever it changes, until cancelled.

    A file that cannot be used is logged, and the last good policies stay in force.

    Args:
        guard: The guard to keep up to date.
        path: The file; read at once, and again when it changes.
        interval: Seconds between looks; default 1.

    Raises:
        PolicyError: The file cannot be used when it is first read.
    """
    seen = await anyio.to_thread.run_sync(_stamp, path)
    await anyio.to_thread.run_sync(_put_in_force, guard, path)
    while True:
        await anyio.sleep(interval)
        stamp = await anyio.to_thread.run_sync(_stamp, path)
        if stamp == seen:
            continue
        seen = stamp
        try:
            version = await anyio.to_thread.run_sync(_put_in_force, guard, path)
        except PolicyError as error:
            _log.error("policies stay as they are: %s", error)
        else:
            _log.warning("policies of version %s are in force", version)


def _put_in_force(guard: ActionGuard, path: str | os.PathLike[str]) -> str:
    return guard.replace_policies(load_policies(path), files=[os.fspath(path)])


def _stamp(path: str | os.PathLike[str]) -> tuple[int, ...] | None:
    """Return values that differ once a file has changed; None if it is missing."""
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns
