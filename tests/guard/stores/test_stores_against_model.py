"""Stores against a model that recounts everything from the beginning each time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from toolcell.guard import Store
from toolcell.guard.stores.base import Charge, RateHit, Reservation, ReservationOutcome

from ...support.guard.builders import NOON, FakeClock
from ...support.guard.linearizability import rate_room
from ...support.guard.store_table import STORES, StoreMaker, sizes, store_makers

SECOND = 1_000_000
HITS = [
    RateHit("window 1", 3, SECOND),
    RateHit("window 2", 5, 10 * SECOND),
    RateHit("bucket 1", 2, SECOND, 333_334),
    RateHit("bucket 2", 4, 7 * SECOND, SECOND),
]
CHARGES = [
    Charge("a", 0, 20),
    Charge("b", 0, 9, refund=True),
    Charge("slots", 0, 3, refund=True),
    Charge("kept", 0, 30, keep=5 * 86_400 * SECOND),
]


@dataclass
class Hold:
    """What the model knows of an admitted reservation."""

    charges: list[Charge]
    amounts: list[int]
    expires: int
    charged: list[int] | None = None

    def due(self) -> list[int]:
        pairs = zip(self.charges, self.amounts, strict=True)
        return [0 if charge.refund else amount for charge, amount in pairs]


@dataclass
class Model:
    """Everything that ever happened; nothing is kept up to date."""

    calls: dict[str, list[int]] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)

    def end_holds(self, now: int) -> None:
        for hold in self.holds.values():
            if hold.charged is None and hold.expires <= now:
                hold.charged = hold.due()

    def used(self, key: str) -> int:
        return sum(
            amount
            for hold in self.holds.values()
            for charge, amount in zip(hold.charges, hold.charged or (), strict=False)
            if charge.key == key
        )

    def held(self, key: str) -> int:
        return sum(
            amount
            for hold in self.holds.values()
            if hold.charged is None
            for charge, amount in zip(hold.charges, hold.amounts, strict=True)
            if charge.key == key
        )

    def reserve(self, request: Reservation, now: int) -> ReservationOutcome:
        rooms = [
            rate_room(hit, self.calls.get(hit.key, []), now) for hit in request.hits
        ]
        waits, room = [wait for wait, _ in rooms], [left for _, left in rooms]
        levels = []
        for charge in request.charges:
            used, held = self.used(charge.key), self.held(charge.key)
            rest = max(charge.limit - used - held, 1)
            amount = rest if charge.amount is None else charge.amount
            levels.append((used, held, amount))
        admitted = not any(waits) and all(
            sum(level) <= charge.limit
            for charge, level in zip(request.charges, levels, strict=True)
        )
        if admitted:
            for hit in request.hits:
                self.calls.setdefault(hit.key, []).extend([now] * hit.calls)
            amounts = [amount for _, _, amount in levels]
            expires = now + request.hold_microseconds
            self.holds[request.hold_id] = Hold(list(request.charges), amounts, expires)
        return ReservationOutcome(admitted, waits, room, levels)

    def settle(self, hold_id: str, actual: list[int] | None) -> bool:
        hold = self.holds[hold_id]
        done = hold_id in self.settled
        if done or (hold.charged is not None and actual is None):
            return False
        hold.charged = hold.due() if actual is None else actual
        self.settled.add(hold_id)
        return True

    settled: set[str] = field(default_factory=set)


amounts = st.none() | st.integers(0, 12)
COUNTS = st.sampled_from([1, 1, 1, 2, 3, 6])
MOVES = [0, 1, 333_333, 333_334, 500_000, SECOND - 1, SECOND, 3 * SECOND, 60 * SECOND]


class StoreMachine(RuleBasedStateMachine):
    """Random calls on a store and on the model; both must say the same."""

    make: StoreMaker
    portal: BlockingPortal

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.now = int(NOON) * SECOND
        self.store: Store = self.make(self.clock)
        self.model = Model()
        self.count = 0

    def teardown(self) -> None:
        self.portal.call(self.store.aclose)

    @rule(move=st.sampled_from(MOVES))
    def time_passes(self, move: int) -> None:
        self.now += move
        self.clock.now = self.now / SECOND
        self.model.end_holds(self.now)

    @rule(
        hits=st.dictionaries(st.sampled_from(HITS), COUNTS),
        spent=st.dictionaries(st.sampled_from(CHARGES), amounts, min_size=1),
        hold=st.sampled_from([SECOND, 5 * SECOND, 3600 * SECOND]),
        take=st.booleans() | st.just(value=True),
    )
    def reserve(
        self,
        hits: dict[RateHit, int],
        spent: dict[Charge, int | None],
        hold: int,
        take: bool,
    ) -> None:
        self.count += 1
        rates = [hit._replace(calls=calls) for hit, calls in sorted(hits.items())]
        charges = [charge._replace(amount=amount) for charge, amount in spent.items()]
        request = Reservation(str(self.count), rates, charges, hold)
        if take:
            outcome = self.portal.call(self.store.reserve, request)
            expected = self.model.reserve(request, self.now)
        else:
            outcome = self.portal.call(self.store.peek, request)
            scratch = Model(dict(self.model.calls), dict(self.model.holds))
            scratch.calls = {key: [*calls] for key, calls in scratch.calls.items()}
            expected = scratch.reserve(request, self.now)
        assert outcome == expected

    @rule(data=st.data(), actual=st.lists(st.integers(0, 15), min_size=4, max_size=4))
    def settle(self, data: st.DataObject, actual: list[int]) -> None:
        if not self.model.holds:
            return
        hold_id = data.draw(st.sampled_from(list(self.model.holds)))
        cost = actual[: len(self.model.holds[hold_id].charges)]
        told = data.draw(st.sampled_from([cost, None]))
        settled = self.portal.call(self.store.settle, hold_id, told)
        assert settled is self.model.settle(hold_id, told)


@pytest.mark.promise("RG-23")
@pytest.mark.parametrize("examples", sizes(20, 300, 1200))
@pytest.mark.parametrize("name", STORES)
def test_a_store_is_the_model(name: str, examples: int) -> None:
    with (
        start_blocking_portal() as portal,
        store_makers(name) as make,
    ):
        machine = type(
            "Machine", (StoreMachine,), {"make": staticmethod(make), "portal": portal}
        )
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=50,
                suppress_health_check=list(HealthCheck),
                database=None,
                derandomize=True,
                # Not shrunk: that takes longer than a test may.
                phases=[Phase.generate],
            ),
        )
