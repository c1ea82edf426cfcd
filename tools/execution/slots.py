"""Slots for calls: a number of calls at once, and one at a time of each group.

A limiter and a semaphore a group, both of anyio, are 20 lines less and take 0.4 to
0.7 µs for a call with a group, these 0.25 to 0.4. They are not used because a call that
waited for its group would then go to the end of the queue for a slot.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from toolcell.core import ConfigError, ToolExecutionError

from .attempt import NO_SLOTS, HeldSlots, current_call


@dataclass(slots=True)
class _SlotWaiter:
    group: str | None
    granted: anyio.Event = field(default_factory=anyio.Event)


class Slots:
    """Lets calls pass: agents take turns, and none waits for a group it is not in.

    A slot that is given back goes to the agent that holds fewest, of its calls to the
    one that came first. Once a second agent has called, the last free slot is for
    agents that hold none, so that long calls of one agent keep no other one waiting.

    A call gets its slot and its group at the same moment, so no two calls wait for each
    other. A call made inside a call shares the slot of the outer one: if it waited for
    its own slot, both could wait for ever.

    Args:
        limit: Calls at once. When it is reached others wait.
        wait_seconds: Seconds for which a call waits. When it is reached it fails.
    """

    def __init__(self, limit: int, wait_seconds: float = math.inf) -> None:
        self._limit = limit
        self._wait_seconds = wait_seconds
        self._free = limit
        self._busy: set[str] = set()
        self._held: Counter[str] = Counter()
        self._first_agent: str | None = None
        self._is_shared = False
        self._waiting: dict[str, deque[_SlotWaiter]] = {}
        """By agent, in order of arrival."""

        self.own: HeldSlots = frozenset({id(self)})

    def take(self, agent: str, group: str | None) -> bool:
        """Take a slot and the group if both are free; `release` gives them back."""
        if self._first_agent is None:
            self._first_agent = agent
        self._is_shared = self._is_shared or agent != self._first_agent
        if group in self._busy or not self._has_room(agent):
            return False
        self._free -= 1
        self._held[agent] += 1
        if group is not None:
            self._busy.add(group)
        return True

    def _has_room(self, agent: str) -> bool:
        keeps_one = self._is_shared and self._limit > 1 and self._held[agent] > 0
        return self._free > keeps_one

    async def wait(self, agent: str, group: str | None, *, begun: bool = False) -> None:
        """Wait for a slot and the group; `release` gives both back.

        Args:
            agent: The agent that calls.
            group: The group of the call.
            begun: True if the call runs already, and waits for however long.

        Raises:
            ToolExecutionError: It waited for too long, and nothing was done.
        """
        waiter = _SlotWaiter(group)
        self._waiting.setdefault(agent, deque()).append(waiter)
        try:
            with anyio.move_on_after(math.inf if begun else self._wait_seconds):
                await waiter.granted.wait()
        except BaseException:
            self._leave(agent, waiter)
            raise
        if not waiter.granted.is_set():
            self._leave(agent, waiter)
            raise ToolExecutionError(
                f"the call waited for {self._wait_seconds:g} s, and was not made",
                hint="try again later, or make fewer calls at once",
                details={"outcome": "none"},
            )

    def _leave(self, agent: str, waiter: _SlotWaiter) -> None:
        if waiter.granted.is_set():
            self.release(agent, waiter.group)
        else:
            self._remove(agent, waiter)

    def _remove(self, agent: str, waiter: _SlotWaiter) -> None:
        self._waiting[agent].remove(waiter)
        if not self._waiting[agent]:
            del self._waiting[agent]

    def release(self, agent: str, group: str | None) -> None:
        """Give back a slot and the group, and let the next ones pass."""
        self._free += 1
        self._held[agent] -= 1
        if not self._held[agent]:
            del self._held[agent]
        if group is not None:
            self._busy.discard(group)
        while self._free > 0 and self._waiting and self._let_one_pass():
            pass

    def _let_one_pass(self) -> bool:
        for agent in sorted(self._waiting, key=self._held.__getitem__):
            for waiter in self._waiting[agent]:
                if self.take(agent, waiter.group):
                    self._remove(agent, waiter)
                    # Behind the others who hold as many.
                    if agent in self._waiting:
                        self._waiting[agent] = self._waiting.pop(agent)
                    waiter.granted.set()
                    return True
                if waiter.group is None:
                    break
        return False


class Slot:
    """The slot that one call waits for and holds while it runs."""

    __slots__ = ("_agent", "_entered", "_group", "_slots", "held")

    def __init__(self, slots: Slots, agent: str, group: str | None) -> None:
        self._slots = slots
        self._agent = agent
        self._group = group
        self._entered = False
        self.held: HeldSlots = NO_SLOTS
        """The slots that this call and the calls around it hold."""

    def enter(self) -> bool:
        """Take the slot if it is free, or not needed; if not, `wait` for it."""
        outer, own = current_call.get(), self._slots.own
        if outer is None:
            self.held = own
        elif own <= outer.held:
            self.held = outer.held
            return True
        else:
            self.held = outer.held | own
        self._entered = self._slots.take(self._agent, self._group)
        return self._entered

    async def wait(self) -> None:
        """Wait for the slot that `enter` did not get."""
        await self._slots.wait(self._agent, self._group)
        self._entered = True

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """Let others have the slot inside; at a good end it is waited for again."""
        lends = self._entered
        self.release()
        yield
        if lends and not self._slots.take(self._agent, self._group):
            await self._slots.wait(self._agent, self._group, begun=True)
        self._entered = lends

    def release(self) -> None:
        """Give the slot back, if it was taken."""
        if self._entered:
            self._entered = False
            self._slots.release(self._agent, self._group)


def group_of_each(groups: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Return the group of each tool that is in one.

    Raises:
        ConfigError: A tool is in two groups.
    """
    found: dict[str, str] = {}
    for group, names in groups.items():
        for name in names:
            if found.setdefault(name, group) != group:
                raise ConfigError(
                    f"{name} is in the groups {found[name]} and {group}",
                    hint="put it into one group",
                )
    return found
