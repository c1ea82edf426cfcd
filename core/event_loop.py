"""Work that leaves room for others on the event loop, and calls to another loop.

To read a call of some megabytes takes a second where rules look at its texts. A thread
does it, in steps of some milliseconds: between two of them the event loop goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.from_thread import BlockingPortal
from anyio.lowlevel import RunVar

from .errors import InvalidInputError

LARGE = 65_536
"""Characters of texts and names, to which each value adds 64, and each digit of a large
number 1. When it is reached a value is large."""

_VALUE = 64
_BITS_OF_DIGIT = 3
_TURNS = 16
"""About as many as a small call over HTTP takes; 0.15 ms if nothing is to do."""

_PARTS = 16

_WORK_SECONDS = 0.001

_R = TypeVar("_R")
_turns: RunVar[WeakValueDictionary[str, anyio.CapacityLimiter]] = RunVar("large values")
_agent: ContextVar[str] = ContextVar("agent whose large values are read", default="")
_steps: RunVar[_Steps] = RunVar("steps of work on large values")
_thread = threading.local()


def is_large(value: object) -> bool:
    """Return whether a JSON value is too large to be read on an event loop."""
    return room_beside(value, LARGE) < 0


def room_beside(value: object, room: int) -> int:
    """Return what a JSON value leaves of a room; below 0: the value is larger.

    Args:
        value: The value. No more of it is looked at than the room holds.
        room: Characters of texts and names; values and digits count as for `LARGE`.
    """
    found = [value]
    # What is found grows while it is read.
    for item in found:
        if isinstance(item, str):
            room -= len(item)
        elif isinstance(item, int):
            room -= item.bit_length() // _BITS_OF_DIGIT
        elif isinstance(item, (dict, list)):
            room -= _VALUE * len(item)
            if room < 0:
                break
            if isinstance(item, list):
                found += item
            else:
                room -= sum(map(len, item))
                found += item.values()
        if room < 0:
            break
    return room


async def give_way() -> None:
    """Let the event loop run between two steps of work on a large value.

    Such steps are done one by one, agents take turns, and the loop has some turns for
    itself before each. So the small calls of others, which take several turns, wait for
    a step or two, not for one of each large value in each turn; and large values of one
    agent wait for one step of each other, however many those read.
    The task is not cancelled here: what it has begun it can end.
    """
    steps = _steps.get(None)
    if steps is None:
        steps = _Steps()
        _steps.set(steps)
    with anyio.CancelScope(shield=True):
        async with steps.of_agent(_agent.get()), steps.of_all:
            for _ in range(_TURNS):
                await anyio.lowlevel.checkpoint()


@contextmanager
def large_values_of(agent_id: str) -> Iterator[None]:
    """Name the agent that takes a turn wherever `give_way` is called in the block."""
    before = _agent.set(agent_id)
    try:
        yield
    finally:
        _agent.reset(before)


class _Steps:
    """The order of steps on large values: each agent has one in the queue of all."""

    def __init__(self) -> None:
        self.of_all = anyio.Lock()
        self._of_agents: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    def of_agent(self, agent_id: str) -> anyio.Lock:
        return self._of_agents.setdefault(agent_id, anyio.Lock())


class SmallParts:
    """Work in small parts, of which many may come without any wait between them."""

    def __init__(self) -> None:
        self._begun = 0

    async def begin(self) -> None:
        """Begin a part; the event loop runs before each 16th."""
        self._begun += 1
        if self._begun % _PARTS == 0:
            await anyio.lowlevel.checkpoint()


async def read_large(owner: str, value: object, work: Callable[[], _R]) -> _R:
    """Return the result of work on a value, beside the loop if the value is large."""
    return await beside_loop(owner, work) if is_large(value) else work()


async def beside_loop(owner: str, work: Callable[[], _R]) -> _R:
    """Return the result of work that is done in a thread.

    Args:
        owner: The agent or server whose work it is. That of one is done one after the
            other, so that it takes no more than its share of the interpreter.
        work: Does it, in calls of some milliseconds: only between two of them does the
            interpreter turn to the event loop. Long work calls `rest` between them.
            It is not stopped half-way.
    """
    turns = _turns.get(None)
    if turns is None:
        turns = WeakValueDictionary()
        _turns.set(turns)
    turn = turns.setdefault(owner, anyio.CapacityLimiter(1))
    return await anyio.to_thread.run_sync(partial(_at_pace, work), limiter=turn)


def _at_pace(work: Callable[[], _R]) -> _R:
    _thread.pace = _Pace()
    try:
        return work()
    finally:
        del _thread.pace


def rest() -> None:
    """Rest in work beside the loop, once there was enough of it; elsewhere go on."""
    pace: _Pace | None = getattr(_thread, "pace", None)
    if pace is not None:
        pace.keep()


class _Pace:
    """The pace of a thread's work beside the loop: a rest after each millisecond.

    The interpreter turns to a thread that waits for it after five milliseconds, and a
    small call waits so several times. A thread that rests as long as it worked leaves
    it half of the time at once.
    """

    def __init__(self) -> None:
        self._rested = time.thread_time()

    def keep(self) -> None:
        """Rest, if there was enough work since the last rest."""
        worked = time.thread_time() - self._rested
        if worked >= _WORK_SECONDS:
            time.sleep(worked)
            self._rested = time.thread_time()


def wait_for(portal: BlockingPortal, call: Callable[[], Awaitable[_R]]) -> _R:
    """Return the result of a call on a portal's event loop; Ctrl-C cancels the call.

    Raises:
        InvalidInputError: The portal has ended, or its own event loop would wait.
    """
    try:
        future = portal.start_task_soon(call)
    except RuntimeError as error:
        raise InvalidInputError(
            "it was called after its `with` block, or on its own event loop",
            hint="call it inside the block, and in a tool from a plain function",
        ) from error
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


@contextmanager
def unwrapped_single_error() -> Iterator[None]:
    """Raise the only error of task groups inside the block without the groups."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            [error] = error.exceptions
        context = error.__context__
        try:
            raise error
        finally:
            # Not the groups that are being handled here.
            error.__context__ = context
