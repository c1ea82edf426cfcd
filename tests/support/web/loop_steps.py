"""The steps of the event loop, by the CPU time that each takes of its thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

SECONDS = 0.05
"""The longest that one step of the loop may take, of CPU of its thread."""

TRIES = 10
"""Times that a message is sent until one of them is quick enough."""


@contextmanager
def steps() -> Iterator[list[float]]:
    """Measure the steps of the event loop, in seconds of CPU of its thread."""
    taken: list[float] = []
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        start = time.thread_time()
        try:
            run(handle)
        finally:
            taken.append(time.thread_time() - start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", measured)
        yield taken
