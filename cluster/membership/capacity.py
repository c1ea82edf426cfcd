"""Holds Ray's resource `toolcell`, and asks for more of it.

Ray does not see cells: without this an autoscaler would take a machine full of cells
for idle, and never know that runs wait. So what is busy is held on its machine, in
quarters, and what waits is asked for by a placement group that cannot be placed yet.
"""

from __future__ import annotations

RESOURCE = "toolcell"
"""The resource of Ray that makes a machine a node; its amount is the node's slots."""

IDLE_SECONDS = 60.0
"""Seconds for which a part of a machine is held after its last use, so that a machine
does not come and go with each pause."""

DEMAND_SECONDS = 2.0
"""Seconds that runs wait until Ray is asked for room."""

MAX_DEMAND = 256
"""Slots that are asked for at once. When it is reached, the rest is asked for when
these have come."""

_QUARTERS = 4


class Holding:
    """The quarters of one machine that are held.

    Args:
        slots: The slots of the machine.
        idle_seconds: Seconds until what is not used is let go.
    """

    def __init__(self, slots: int, idle_seconds: float = IDLE_SECONDS) -> None:
        self.part = max(1, slots // _QUARTERS)
        """Slots that are held or let go together."""

        self._most = slots // self.part
        self._idle_seconds = idle_seconds
        self._held = 0
        self._enough_since: float | None = None

    def parts(self, busy: int, now: float) -> int:
        """Return the number of parts to hold.

        Args:
            busy: Slots in use.
            now: Seconds on a clock that never goes back.
        """
        needed = min(-(-busy // self.part), self._most)
        if needed >= self._held:
            self._held, self._enough_since = needed, None
        elif self._enough_since is None:
            self._enough_since = now
        elif now - self._enough_since >= self._idle_seconds:
            self._held, self._enough_since = needed, None
        return self._held


class Demand:
    """The slots that are asked for, by what drivers say of their queues."""

    def __init__(self) -> None:
        self._reported: dict[str, tuple[int, float]] = {}
        self._since: float | None = None

    def tell(self, driver: str, waiting: int, until: float) -> None:
        """Note how many runs wait in a driver, who will say so again by `until`."""
        self._reported[driver] = waiting, until

    def waiting(self, now: float) -> int:
        """Return how many runs wait in all drivers."""
        self._reported = {
            driver: demand
            for driver, demand in self._reported.items()
            if demand[0] and demand[1] > now
        }
        return sum(waiting for waiting, _ in self._reported.values())

    def slots(self, now: float) -> int:
        """Return how many slots to ask for now."""
        waiting = self.waiting(now)
        if not waiting:
            self._since = None
            return 0
        if self._since is None:
            self._since = now
        return min(waiting, MAX_DEMAND) if now - self._since >= DEMAND_SECONDS else 0
