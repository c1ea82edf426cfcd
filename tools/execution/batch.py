"""Runs the calls of a batch, in as few tasks as isolation allows.

A task costs more than a call that never waits, so such calls share one, each in a
context of its own. Once a call waits or fails, its task takes no further call, so that
nothing leaks from one call to another. The only call of a batch runs in the caller's
task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextvars import copy_context
from typing import Any, Protocol

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from .stepping import (
    OWN_TASK,
    AnyCoroutine,
    TaskCancels,
    current_task,
    drive,
    run_in_callers_task,
    take_back_cancels,
)

_MAX_HOLD_SECONDS = 0.001
"""Seconds for which calls that never wait hold the event loop. When it is reached
other tasks have their turn."""


class BatchCall(Protocol):
    """One call of a batch.

    Awaited, it hands its result over, and returns whether the call succeeded. It raises
    when it is cancelled.
    """

    def __call__(self, cancels: TaskCancels = OWN_TASK, /) -> AnyCoroutine: ...


def run_batch(
    calls: Sequence[BatchCall], names: Iterable[str], tasks: int
) -> Coroutine[Any, Any, object]:
    """Make calls in their order, once it is awaited.

    Args:
        calls: The calls; each is made once.
        names: The names of their tasks, for debuggers.
        tasks: Calls that may wait at once. When it is reached the next ones begin as
            others end.
    """
    if len(calls) == 1:
        return run_in_callers_task(calls[0])
    return _run_in_tasks(calls, names, tasks)


async def _run_in_tasks(
    calls: Sequence[BatchCall], names: Iterable[str], tasks: int
) -> None:
    async with anyio.create_task_group() as group:
        _BatchTasks(group, calls, names, tasks).start_next()


class _BatchTasks:
    def __init__(
        self,
        group: TaskGroup,
        calls: Sequence[BatchCall],
        names: Iterable[str],
        tasks: int,
    ) -> None:
        self._group = group
        self._left = iter(list(zip(calls, names, strict=True)))
        self._free = tasks

    def start_next(self) -> None:
        """Make the next call in a new task, if there is one and room for it."""
        following = next(self._left, None) if self._free > 0 else None
        if following is not None:
            self._free -= 1
            call, name = following
            self._group.start_soon(self._work, call, name=name)

    async def _work(self, call: BatchCall) -> None:
        task = current_task()
        began = time.perf_counter()
        while await self._run_inline(call) and task and not task.cancelling():
            if time.perf_counter() - began > _MAX_HOLD_SECONDS:
                await anyio.lowlevel.checkpoint()
                began = time.perf_counter()
            following = next(self._left, None)
            if following is None:
                break
            call, name = following
            task.set_name(name)
        if task is not None and task.cancelling():
            await _forget_cancels(task)
        self._free += 1
        self.start_next()

    async def _run_inline(self, call: BatchCall) -> bool:
        """Make a call; return whether its task can take another one."""
        context, work = copy_context(), call()
        try:
            waited = context.run(work.send, None)
        except StopIteration as end:
            return bool(end.value)
        self.start_next()
        await drive(work, waited, context.run)
        return False


async def _forget_cancels(task: asyncio.Task[Any]) -> None:
    """Undo that a tool cancelled the task it ran in."""
    if not OWN_TASK.are_from_outside():
        await take_back_cancels(task, task.cancelling())
