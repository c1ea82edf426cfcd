"""Calls, clocks and people for tests of the guard."""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from toolcell.core import GuardDeniedError, ToolCall
from toolcell.guard import ActionGuard, CallFacts, Decision

from .worker import SetClock

NOON = 1_700_000_000.0
"""2023-11-14 22:13:20 UTC; 46 minutes 40 seconds before a new hour."""

FREE = CallFacts(cost={}, run_id="r", turn="1")
"""Of a tool that costs nothing but the call."""


@dataclass
class FakeClock(SetClock):
    """A clock that is moved by hand, from noon on."""

    now: float = NOON


def call(name: str = "add", agent_id: str | None = "a", **arguments: Any) -> ToolCall:
    return ToolCall(id="1", name=name, arguments=arguments, agent_id=agent_id)


def facts(**cost: Any) -> CallFacts:
    return CallFacts(cost=cost, run_id="r", turn="1")


async def refusal(
    guard: ActionGuard, asked: ToolCall, known: CallFacts = FREE
) -> dict[str, Any]:
    """Return the details of a refused call; fail if it is admitted."""
    try:
        async with guard.admit(asked, known):
            pass
    except GuardDeniedError as error:
        return error.details
    raise AssertionError("the call was admitted")


async def spend(
    guard: ActionGuard, asked: ToolCall, known: CallFacts = FREE, **cost: Any
) -> Decision:
    """Make a whole call; return the decision that admitted it."""
    async with guard.admit(asked, known) as permit:
        await permit.settle(cost)
    return permit.decision


@contextmanager
def impatient_threads() -> Iterator[None]:
    """Let threads change places every 10 µs."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def in_threads(count: int, function: Callable[[int], Awaitable[object]]) -> None:
    """Run a function in threads with an event loop each, all at once.

    Args:
        count: How many threads; they begin together.
        function: Called with the number of its thread; what one raises is raised.
    """
    barrier = threading.Barrier(count)

    async def begin(number: int) -> None:
        barrier.wait()
        await function(number)

    with impatient_threads(), ThreadPoolExecutor(count) as pool:
        for _ in pool.map(lambda number: anyio.run(begin, number), range(count)):
            pass
