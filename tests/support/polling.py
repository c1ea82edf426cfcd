"""Waiting for what another process does."""

from __future__ import annotations

from collections.abc import Callable

import anyio

PATIENCE = 60.0
"""Seconds after which a test that waits has failed; a process may be starting."""


async def until(condition: Callable[[], bool]) -> None:
    """Look again and again. Raises TimeoutError."""
    with anyio.fail_after(PATIENCE):
        while not condition():
            await anyio.sleep(0.005)
