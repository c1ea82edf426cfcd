"""Waiting for what another process does."""

from __future__ import annotations

from collections.abc import Callable

import anyio

SECONDS = 60.0
"""How long a test waits; one of the processes may be starting."""


async def until(condition: Callable[[], bool]) -> None:
    """Look again and again. Raises TimeoutError."""
    with anyio.fail_after(SECONDS):
        while not condition():
            await anyio.sleep(0.005)
