"""The calls of a batch, shared out among tasks.

A task of its own is dear beside a call that never waits. Such calls share one, each
in a context of its own. A call that waits or fails is the last one of its task, so
that nothing that it did to the task meets another call.
"""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from .runner import is_cancelled

BatchCall = Callable[[], Coroutine[Any, Any, bool]]
"""One call of a batch. It hands its result over, and returns whether all went well;
it raises when it is cancelled."""

_LONGEST_HOLD_SECONDS = 0.001
"""How long calls that never wait keep the event loop. When it is reached others have
their turn."""


async def run_batch(
    turns: Sequence[BatchCall], names: Sequence[str], tasks: int
) -> None:
    """Await every turn in its order, so many at once, in tasks of these names."""
    async with anyio.create_task_group() as group:
        _Batch(group, turns, names, tasks).start_next()


class _Batch:
    def __init__(
        self,
        group: TaskGroup,
        turns: Sequence[BatchCall],
        names: Sequence[str],
        tasks: int,
    ) -> None:
        self._group = group
        self._left = iter(list(zip(turns, names, strict=True)))
        self._free = tasks

    def start_next(self) -> None:
        """Make the next call in a new task, if there is one and room for it."""
        following = next(self._left, None) if self._free > 0 else None
        if following is not None:
            self._free -= 1
            turn, name = following
            self._group.start_soon(self._work, turn, name=name)

    async def _work(self, turn: BatchCall) -> None:
        task = _task()
        began = time.perf_counter()
        while (
            await self._run_inline(turn) and task is not None and not task.cancelling()
        ):
            if time.perf_counter() - began > _LONGEST_HOLD_SECONDS:
                await anyio.lowlevel.checkpoint()
                began = time.perf_counter()
            following = next(self._left, None)
            if following is None:
                break
            turn, name = following
            task.set_name(name)
        if task is not None and task.cancelling():
            await _forget_cancellation(task)
        self._free += 1
        self.start_next()

    async def _run_inline(self, turn: BatchCall) -> bool:
        """Make a call; return whether its task is as good as new."""
        context, work = copy_context(), turn()
        try:
            waited = context.run(work.send, None)
        except StopIteration as end:
            return bool(end.value)
        self.start_next()
        await _drive_rest(work, context, waited)
        return False


@types.coroutine
def _drive_rest(
    work: Coroutine[Any, Any, Any], context: Context, waited: Any
) -> Generator[Any, Any, None]:
    """Do the rest of work that has begun to wait, in its context."""
    try:
        while True:
            try:
                sent = yield waited
            except BaseException as error:  # noqa: BLE001 - the work has to see it
                waited = context.run(work.throw, error)
            else:
                waited = context.run(work.send, sent)
    except StopIteration:
        return
    finally:
        context.run(work.close)


def _task() -> asyncio.Task[Any] | None:
    """Return the task we are in; None on trio, where tasks cannot be renamed."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


async def _forget_cancellation(task: asyncio.Task[Any]) -> None:
    """Take back what a tool did that cancelled the task it ran in."""
    if is_cancelled(own_task=True):
        return
    while task.cancelling():
        task.uncancel()
    # It may be still to come.
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
