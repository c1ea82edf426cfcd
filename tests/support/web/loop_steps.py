"""The steps of the event loop, by CPU time of its thread, and by calls."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

SECONDS = 0.05
"""The longest that one step of the loop may take, of CPU of its thread."""

WORK = json.dumps([{"a": n, "b": str(n)} for n in range(10_000)])
WORK_SECONDS = 0.012
"""CPU that reading and writing `WORK` takes where `SECONDS` holds.

Others on the same machine make each second of CPU do less: up to half in CI.
"""

TRIES = 10
"""Times that a message is sent until one of them is quick enough."""

_N = TypeVar("_N", int, float)


@contextmanager
def steps() -> Iterator[list[float]]:
    """Measure the steps of the event loop, in seconds of CPU of its thread.

    They are those of a machine that does `WORK` in its time, if this one is slower.
    """
    before = _slowness()
    with _measured(time.thread_time) as taken:
        yield taken
    slower = max(1.0, (before + _slowness()) / 2)
    taken[:] = [each / slower for each in taken]


@contextmanager
def calls_in_steps(owner: type, name: str) -> Iterator[list[int]]:
    """Count the calls of a method in each step of the event loop."""
    calls = 0
    method = getattr(owner, name)

    def counted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        return method(*args)

    with pytest.MonkeyPatch.context() as patch, _measured(lambda: calls) as taken:
        patch.setattr(owner, name, counted)
        yield taken


def _slowness() -> float:
    start = time.thread_time()
    json.dumps(json.loads(WORK))
    return (time.thread_time() - start) / WORK_SECONDS


@contextmanager
def _measured(amount: Callable[[], _N]) -> Iterator[list[_N]]:
    """Yield what is added to an amount by each step of the event loop."""
    taken: list[_N] = []
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        start = amount()
        try:
            run(handle)
        finally:
            taken.append(amount() - start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", measured)
        yield taken
