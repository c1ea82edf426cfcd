"""Slots for calls: a number of calls at once, and one at a time of each group.

A limiter and a semaphore a group, both of anyio, are 20 lines less and take 0.4 to
0.7 µs for a call with a group, these 0.25 to 0.4. They are not used because a call that
waited for its group would then go to the end of the queue for a slot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from toolcell.core import ConfigError

from .call_state import NO_SLOTS, HeldSlots, current_call


@dataclass(slots=True)
class _SlotWaiter:
    group: str | None
    granted: anyio.Event = field(default_factory=anyio.Event)


class Slots:
    """Lets calls pass in order of arrival; none waits for a group it is not in.

    A call gets its slot and its group at the same moment, so no two calls wait for each
    other. A call made inside a call shares the slot of the outer one: if it waited for
    a slot of its own, both could wait for ever.

    Args:
        limit: Calls at once. When it is reached others wait.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._busy: set[str] = set()
        self._waiting: deque[_SlotWaiter] = deque()
        self.own: HeldSlots = frozenset({id(self)})

    def take(self, group: str | None) -> bool:
        """Take a slot and the group if both are free; `release` gives them back."""
        if self._free <= 0 or group in self._busy:
            return False
        self._free -= 1
        if group is not None:
            self._busy.add(group)
        return True

    async def wait(self, group: str | None) -> None:
        """Wait for a slot and the group; `release` gives both back."""
        waiter = _SlotWaiter(group)
        self._waiting.append(waiter)
        try:
            await waiter.granted.wait()
        except BaseException:
            if waiter.granted.is_set():
                self.release(group)
            else:
                self._waiting.remove(waiter)
            raise

    def release(self, group: str | None) -> None:
        """Give back a slot and the group, and let the next ones pass."""
        self._free += 1
        if group is not None:
            self._busy.discard(group)
        while self._waiting and self._free > 0:
            waiter = next((w for w in self._waiting if w.group not in self._busy), None)
            if waiter is None:
                return
            self._waiting.remove(waiter)
            self.take(waiter.group)
            waiter.granted.set()


class Slot:
    """The slot that one call waits for and holds while it runs."""

    __slots__ = ("_entered", "_group", "_slots", "held")

    def __init__(self, slots: Slots, group: str | None) -> None:
        self._slots = slots
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
        self._entered = self._slots.take(self._group)
        return self._entered

    async def wait(self) -> None:
        """Wait for the slot that `enter` did not get."""
        await self._slots.wait(self._group)
        self._entered = True

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """Let others have the slot inside; at a good end it is waited for again."""
        lends = self._entered
        self.release()
        yield
        if lends and not self._slots.take(self._group):
            await self._slots.wait(self._group)
        self._entered = lends

    def release(self) -> None:
        """Give the slot back, if it was taken."""
        if self._entered:
            self._entered = False
            self._slots.release(self._group)


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
