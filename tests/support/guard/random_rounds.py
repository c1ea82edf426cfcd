"""Random rounds of calls on a store, and a check that recounts what came of them.

Each call adds its own power of two to two accounts. What an answer tells of them is
the set of calls that the store had taken, settled and ended when it judged: so each
answer can be recounted from the beginning, and the answers of all workers put in
order, without a word from the store's other counters.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from toolcell.guard.stores.base import Charge, RateHit, Reservation, ReservationOutcome

from .builders import NOON
from .worker import Event, Job

SECOND = 1_000_000
HOUR = 3600 * SECOND
_ALL = 2**52
_MOVES = [0, 0, SECOND // 2, SECOND, 10 * SECOND, HOUR]


@dataclass
class Call:
    """What is known of one call."""

    job: Job
    at: int
    died: int | None = None
    """When its process was killed."""

    asked: Event | None = None

    @property
    def amounts(self) -> list[int]:
        outcome = self.asked and self.asked.outcome
        if outcome is not None:
            return [amount for _, _, amount in outcome.levels]
        return [charge.amount or 0 for charge in self.job.request.charges]

    @property
    def expires(self) -> int:
        return self.at + self.job.request.hold_microseconds

    def charged(self, place: int, seen: Seen) -> int:
        """Return what it has cost an account, as far as an answer shows."""
        charge, amount = self.job.request.charges[place], self.amounts[place]
        if self.job.bit & seen.told:
            assert self.job.cost is not None
            return self.job.cost[place]
        return amount if self.job.bit & seen.ended and not charge.refund else 0

    def held(self, place: int, seen: Seen) -> int:
        return self.amounts[place] if self.job.bit & seen.open else 0


class Seen(NamedTuple):
    """Sets of calls, as one answer shows them."""

    open: int
    ended: int
    """Of themselves, or unsettled."""

    told: int
    """Settled with a cost."""

    @property
    def taken(self) -> int:
        return self.open | self.ended | self.told

    @property
    def size(self) -> int:
        masks = (self.taken, self.taken & ~self.open, self.told)
        return sum(mask.bit_count() for mask in masks)

    def follows(self, other: Seen) -> bool:
        """Return whether nothing is undone since another answer."""
        over, over_before = self.ended | self.told, other.ended | other.told
        return not (
            other.taken & ~self.taken | over_before & ~over | other.told & ~self.told
        )


def seen_in(outcome: ReservationOutcome) -> Seen:
    (used, held, _), (told, unsettled, _) = outcome.levels[:2]
    assert held == unsettled, "a call is counted twice, or lost"
    assert not used & held | told & ~used, "a call is counted twice"
    return Seen(held, used & ~told, told)


@dataclass
class Round:
    """Some calls in a few bursts, between which time passes."""

    name: str
    now: int = int(NOON) * SECOND
    in_doubt: bool = False
    """Whether workers die: then no call holds what only its answer says."""

    calls: dict[int, Call] = field(default_factory=dict)
    settled: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = chance = random.Random(self.name)
        slots = chance.randrange(1, 5)
        length = chance.choice([SECOND, 10 * SECOND])
        lines: list[RateHit | Charge] = [
            Charge(f"{self.name}|spent", 0, chance.randrange(40)),
            Charge(f"{self.name}|fund", 0, chance.randrange(40), refund=True),
            Charge(f"{self.name}|slots", 1, slots, refund=True),
            RateHit(f"{self.name}|window", chance.randrange(1, 8), length),
            RateHit(f"{self.name}|bucket", chance.randrange(1, 5), length, length // 3),
        ]
        self.lines = chance.sample(lines, chance.randrange(1, len(lines) + 1))

    def bursts(self) -> Iterator[list[Job]]:
        """Yield what is to be done at once; the last asks alone for everything."""
        for _ in range(self.random.randrange(1, 4)):
            yield [*self._late(), *self._new(self.random.randrange(3, 11))]
            self.now += self.random.choice(_MOVES)
        self.now += SECOND
        # Refused, so that a store looks for holds of the dead.
        full = [Charge(f"{self.name}|full", 1, 0)] if self.in_doubt else []
        yield self._new(1, [*self.lines, *full])

    def heard(self, events: Sequence[Event]) -> None:
        """Note what the workers of a burst have told."""
        for event in events:
            if event.outcome is None:
                self.settled.append(event)
            else:
                self.calls[event.bit].asked = event

    def buried(self, bits: Iterable[int]) -> None:
        """Note whose process was killed just now."""
        for bit in bits:
            self.calls[bit].died = self.now

    def _late(self) -> Iterator[Job]:
        for call in self.calls.values():
            outcome = call.asked and call.asked.outcome
            open_ = outcome is not None and outcome.admitted and not call.job.settles
            if not open_ or self.random.random() < 0.7:
                continue
            cost = [self.random.randrange(9) for _ in call.amounts]
            cost[:2] = [call.job.bit] * 2
            call.job = call.job._replace(taken=True, settles=1, cost=cost)
            yield call.job

    def _new(self, count: int, lines: Sequence[RateHit | Charge] = ()) -> list[Job]:
        jobs = []
        for _ in range(count):
            bit = 1 << len(self.calls)
            chosen = lines or [line for line in self.lines if self._often()]
            hits = [
                line._replace(calls=self.random.choice([1, 1, 1, 2, 3]))
                for line in chosen
                if isinstance(line, RateHit)
            ]
            charges = [
                Charge(f"{self.name}|marks", bit, _ALL),
                Charge(f"{self.name}|told", bit, _ALL, refund=True),
                *(self._amount(line) for line in chosen if isinstance(line, Charge)),
            ]
            hold = self.random.choice([SECOND, 10 * SECOND, HOUR])
            request = Reservation(f"{self.name}|{bit}", hits, charges, hold)
            cost = [self.random.randrange(9) for _ in charges]
            cost[:2] = [bit, bit]
            told = self.random.choice([cost, cost, None])
            job = Job(bit, request, False, self.random.choice([0, 1, 1, 2]), told)
            self.calls[bit] = Call(job, self.now)
            jobs.append(job)
        return jobs

    def _often(self) -> bool:
        return self.random.random() < 0.8

    def _amount(self, charge: Charge) -> Charge:
        if charge.amount:
            return charge
        amount: int | None = self.random.randrange(9)
        if not self.in_doubt and self.random.random() < 0.1:
            amount = None
        return charge._replace(amount=amount)
