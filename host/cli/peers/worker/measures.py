"""Measures of a kind of sandbox."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial

from .kind import HELLO, AbsentError, Kind, Run
from .processes import pss_mib, shims, tree

_STARTS = 5
_STATES = 10
_RATE_SECONDS = 2.0
_FEW, _MANY = 1, 5
_CALM_POLLS, _POLL_SECONDS, _SETTLE_SECONDS = 5, 0.01, 30.0


async def start(kind: Kind) -> list[float]:
    """Return milliseconds until the first result of a new sandbox."""
    found = []
    for _ in range(_STARTS):
        await _settled(kind)
        began = time.perf_counter()
        async with kind.open() as run:
            printed = await _printed(run, HELLO)
            found.append((time.perf_counter() - began) * 1_000)
            _check(printed, "1")
    return found


async def state(kind: Kind) -> list[float]:
    """Return milliseconds of programs that read a variable of an earlier one."""
    if not kind.keeps_state:
        raise AbsentError("keeps no state")
    found = []
    async with kind.open() as run:
        await _printed(run, "x = 41")
        for _ in range(_STATES):
            began = time.perf_counter()
            printed = await _printed(run, "print(x + 1)")
            found.append((time.perf_counter() - began) * 1_000)
            _check(printed, "42")
    return found


async def rate(kind: Kind) -> list[float]:
    """Return new sandboxes a second, made and closed by a task for each processor."""
    tasks = len(os.sched_getaffinity(0))
    for _ in range(kind.prepared):
        # What was made ahead is no part of what can be sustained.
        await _hello(kind)
    began = time.perf_counter()

    async def work() -> int:
        count = 0
        while count == 0 or time.perf_counter() - began < _RATE_SECONDS:
            await _hello(kind)
            count += 1
        return count

    if kind.blocking:
        # Those of asyncio are at most 32, whatever the number of processors.
        with ThreadPoolExecutor(tasks) as threads:
            run = partial(asyncio.get_running_loop().run_in_executor, threads)
            counts = await asyncio.gather(
                *(run(asyncio.run, work()) for _ in range(tasks))
            )
    else:
        counts = await asyncio.gather(*(work() for _ in range(tasks)))
    return [sum(counts) / (time.perf_counter() - began)]


async def memory(kind: Kind) -> list[float]:
    """Return MB that each further idle sandbox takes, what they share divided."""
    few = await _memory_of(kind, _FEW)
    return [(await _memory_of(kind, _MANY) - few) / (_MANY - _FEW)]


MEASURES: dict[str, Callable[[Kind], Awaitable[list[float]]]] = {
    "start": start,
    "state": state,
    "rate": rate,
    "memory": memory,
}


async def _printed(run: Run, code: str) -> str:
    got = run(code)
    return got if isinstance(got, str) else await got


async def _hello(kind: Kind) -> None:
    async with kind.open() as run:
        _check(await _printed(run, HELLO), "1")


def _check(printed: str, right: str) -> None:
    if printed.strip() != right:
        raise ValueError(f"a program printed {printed!r} in place of {right}")


async def _settled(kind: Kind) -> None:
    """Wait until sandboxes are ready, and no process below this one comes or goes."""
    if kind.ready is not None:
        await kind.ready()
    before, calm = [0], 0
    until = time.monotonic() + _SETTLE_SECONDS
    while calm < _CALM_POLLS and time.monotonic() < until:
        await asyncio.sleep(_POLL_SECONDS)
        now = tree([os.getpid()])
        calm = calm + 1 if now == before else 0
        before = now


async def _memory_of(kind: Kind, count: int) -> float:
    """Return MB of this process and of all below it, with so many idle sandboxes."""
    async with AsyncExitStack() as stack:
        if kind.idle is not None:
            await stack.enter_async_context(kind.idle(count))
        else:
            for _ in range(count):
                run = await stack.enter_async_context(kind.open())
                await _printed(run, kind.waits)
        await _settled(kind)
        above = shims() if kind.containers else []
        return sum(map(pss_mib, tree([os.getpid(), *above])))
