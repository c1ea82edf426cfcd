"""The places of keys of counters: one slot, or on a cluster one for each home.

A script is one step, and reads the keys of one slot. On a single server all keys are in
one. On a cluster the counters of an agent, its parents and their other children are in
the slot of the topmost parent, their home; those of `per="global"` and `per="tool"` are
in a slot that all share. A call that counts in both is reserved at home first, and
taken back there if the shared limits refuse it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from toolcell.core import StoreUnavailableError

from .base import AccountLevel, Charge, RateHit, Reservation, ReservationOutcome
from .redis_scripts import FIND_HOMES, RESERVE, SETTLE, TAKE_BACK
from .redis_threads import Script

_AGENT = "agent|"
_SHARED = ("global|", "tool|")
_ELSEWHERE = Charge("", 0, 0)


class Way(Protocol):
    """A way to the server."""

    async def evaluate(self, script: Script, key: str, values: Sequence[Any]) -> Any:
        """Run a script at the node of a key, which is the prefix of its keys.

        Raises:
            StoreUnavailableError: No answer came in time.
        """


class Slots(Protocol):
    """The places of the keys."""

    async def reserve(
        self, way: Way, now: int | str, request: Reservation, *, take: bool
    ) -> ReservationOutcome:
        """Reserve, or with `take=False` only look."""

    async def settle(
        self, way: Way, now: int | str, hold_id: str, actual: Sequence[int] | None
    ) -> bool:
        """Settle a hold; return False if it was settled before."""

    def pattern(self, kind: str, keys: str) -> str:
        """Return the pattern of the keys of a kind, given that of their names."""


class OneSlot:
    """The keys of a single server.

    Args:
        prefix: The start of every key.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{{{prefix}}}:"

    async def reserve(
        self, way: Way, now: int | str, request: Reservation, *, take: bool
    ) -> ReservationOutcome:
        values = _values(now, request, request.hits, request.charges, take=take)
        answer = await way.evaluate(RESERVE, self._prefix, values)
        return _outcome(answer, len(request.hits))

    async def settle(
        self, way: Way, now: int | str, hold_id: str, actual: Sequence[int] | None
    ) -> bool:
        values = [now, hold_id, *(actual or ())]
        return bool(await way.evaluate(SETTLE, self._prefix, values))

    def pattern(self, kind: str, keys: str) -> str:
        return f"{self._prefix}{kind}:{keys}"


class AgentSlots:
    """The keys of a cluster.

    Args:
        prefix: The start of every key.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.common = f"{{{prefix}}}:"
        """The prefix of the keys that tell about the others."""

        self._homes: dict[str, str] = {}
        """The homes of agents that were looked up."""

    async def reserve(
        self, way: Way, now: int | str, request: Reservation, *, take: bool
    ) -> ReservationOutcome:
        home, hits, charges = request.home, request.hits, request.charges
        keys = [hit.key for hit in hits] + [charge.key for charge in charges]
        if home:
            await self._find_homes(way, home, keys)
        shared = [key.startswith(_SHARED) for key in keys]
        if not home or not any(shared):
            return await self._at(way, home, now, request, hits, charges, take=take)
        cut = len(hits)
        first, second = await self._in_both(
            way, now, request, shared[:cut], shared[cut:], take=take
        )
        return _merged(first, second, shared[:cut], shared[cut:])

    async def _in_both(
        self,
        way: Way,
        now: int | str,
        request: Reservation,
        shared_hits: Sequence[bool],
        shared_charges: Sequence[bool],
        *,
        take: bool,
    ) -> tuple[ReservationOutcome, ReservationOutcome]:
        home, (hits, charges) = request.home, (request.hits, request.charges)
        own_hits = _chosen(hits, shared_hits, shared=False)
        common_hits = _chosen(hits, shared_hits, shared=True)
        # Each part has its place at home, so that a settlement finds the others.
        own = _placed(charges, shared_charges, shared=False)
        common = _placed(charges, shared_charges, shared=True)
        first = await self._at(way, home, now, request, own_hits, own, take=take)
        second = await self._at(
            way, "", now, request, common_hits, common, take=take and first.admitted
        )
        if take and first.admitted and not second.admitted:
            counted = zip(own_hits, first.waits, strict=True)
            values: list[Any] = [now, request.hold_id]
            for hit, wait in counted:
                if not wait:
                    values += [hit.key, hit.interval, hit.calls]
            await way.evaluate(TAKE_BACK, self._tag(home), values)
        return first, second

    async def settle(
        self, way: Way, now: int | str, hold_id: str, actual: Sequence[int] | None
    ) -> bool:
        values = [now, hold_id, *(actual or ())]
        home = hold_id.rpartition("|")[0]
        settled = await way.evaluate(SETTLE, self._tag(home), values)
        if settled == 2:
            await way.evaluate(SETTLE, self._tag(""), values)
        return bool(settled)

    def pattern(self, kind: str, keys: str) -> str:
        return f"{{{self._prefix}|*}}:{kind}:{keys}"

    def forget_homes(self) -> None:
        """Look the homes of agents up again."""
        self._homes.clear()

    def _tag(self, home: str) -> str:
        return f"{{{self._prefix}|{home}}}:"

    async def _at(
        self,
        way: Way,
        home: str,
        now: int | str,
        request: Reservation,
        hits: Sequence[RateHit],
        charges: Sequence[Charge],
        *,
        take: bool,
    ) -> ReservationOutcome:
        values = _values(now, request, hits, charges, take=take)
        return _outcome(await way.evaluate(RESERVE, self._tag(home), values), len(hits))

    async def _find_homes(self, way: Way, home: str, keys: Iterable[str]) -> None:
        """Check that the counters of agents are where they are looked for.

        Raises:
            StoreUnavailableError: They are with another topmost parent, from before the
                policies changed: here they would begin anew.
        """
        agents = {key.split("|", 2)[1] for key in keys if key.startswith(_AGENT)}
        unknown = [agent for agent in agents if self._homes.get(agent) != home]
        if not unknown:
            return
        found = await way.evaluate(FIND_HOMES, self.common, [home, *unknown])
        for agent, place in zip(unknown, found, strict=True):
            if place != home:
                raise StoreUnavailableError(
                    f"the counters of agent {agent} are kept with those of {place}",
                    hint="reset the agent, or give it its former topmost parent back",
                )
            self._homes[agent] = home


def _chosen(
    hits: Sequence[RateHit], marks: Sequence[bool], *, shared: bool
) -> list[RateHit]:
    return [hit for hit, mark in zip(hits, marks, strict=True) if mark == shared]


def _placed(
    charges: Sequence[Charge], marks: Sequence[bool], *, shared: bool
) -> list[Charge]:
    return [
        charge if mark == shared else _ELSEWHERE
        for charge, mark in zip(charges, marks, strict=True)
    ]


def _merged(
    first: ReservationOutcome,
    second: ReservationOutcome,
    shared_hits: Sequence[bool],
    shared_charges: Sequence[bool],
) -> ReservationOutcome:
    rates = {
        False: iter(zip(first.waits, first.room, strict=True)),
        True: iter(zip(second.waits, second.room, strict=True)),
    }
    found = [next(rates[mark]) for mark in shared_hits]
    levels = zip(first.levels, second.levels, shared_charges, strict=True)
    return ReservationOutcome(
        first.admitted and second.admitted,
        [wait for wait, _ in found],
        [room for _, room in found],
        [common if mark else own for own, common, mark in levels],
    )


def _values(
    now: int | str,
    request: Reservation,
    hits: Sequence[RateHit],
    charges: Sequence[Charge],
    *,
    take: bool,
) -> list[Any]:
    """Return the arguments of `RESERVE`."""
    values: list[Any] = [now, request.hold_id, request.hold_microseconds, int(take)]
    values.append(len(hits))
    for key, limit, window, interval, enforced, calls in hits:
        values += (key, limit, window, interval, int(enforced), calls)
    values.append(len(charges))
    for key, amount, limit, keep, refund, enforced in charges:
        held = "" if amount is None else amount
        values += (key, held, limit, keep, int(refund), int(enforced))
    return values


def _outcome(answer: Any, hits: int) -> ReservationOutcome:
    """Return the outcome that an answer of `RESERVE` tells."""
    admitted, numbers = answer
    cut = 2 * hits
    levels: list[AccountLevel] = [
        (numbers[i], numbers[i + 1], numbers[i + 2])
        for i in range(cut, len(numbers), 3)
    ]
    return ReservationOutcome(admitted == 1, numbers[:cut:2], numbers[1:cut:2], levels)
