"""Arrivals of real services, replayed on a clock of the test's own.

Checked afterwards by counting again, from the beginning.
"""

from __future__ import annotations

import csv
from collections.abc import AsyncIterator, Iterator
from fractions import Fraction

import pytest

from toolcell.core import GuardDeniedError
from toolcell.guard import ActionGuard, AgentPolicy, Store

from ...conftest import run_apart
from ...support.corpora import corpus_file
from ...support.guard.builders import NOON, FakeClock, call, facts, in_threads
from ...support.guard.store_table import store_makers

pytestmark = [pytest.mark.anyio, pytest.mark.corpus]

TRACES = {
    "llm_traces/azure_code.csv": 8819,
    "llm_traces_mooncake/synthetic.csv": 3993,
}
"""Each trace, and how many requests are in it."""

US = 1_000_000
_FULL = [pytest.mark.full, pytest.mark.timeout(1800)]
REPLAYS = pytest.mark.parametrize(
    ("store_name", "records"),
    [
        ("memory", 10_000),
        ("sqlite", 500),
        ("redis", 500),
        pytest.param("sqlite", 10_000, marks=_FULL),
        pytest.param("redis", 10_000, marks=_FULL),
    ],
)
"""Each store, and how many requests of a trace it is given at most."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(store_name: str, clock: FakeClock) -> Iterator[Store]:
    with store_makers(store_name) as make:
        made = make(clock)
        yield made
        run_apart(made.aclose)


@pytest.fixture
async def own_store(store: Store) -> AsyncIterator[Store]:
    """A store whose connections close in the loop of the test."""
    yield store
    await store.aclose()


def arrivals(name: str) -> list[tuple[int, int]]:
    """Return when each request came, in microseconds, and its tokens."""
    with corpus_file(name).open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == TRACES[name]
    return [
        (
            round(float(row["t_s"]) * US),
            int(row["tokens_in"]) + int(row["tokens_out"]),
        )
        for row in rows
    ]


def guard_with(store: Store, clock: FakeClock, **fields: object) -> ActionGuard:
    policy = AgentPolicy(agent_id="a", allow=["*"], **fields)
    return ActionGuard([policy], store=store, clock=clock)


@pytest.mark.promise("E-119", "RG-26")
@pytest.mark.parametrize("name", TRACES)
@REPLAYS
async def test_no_window_of_a_trace_holds_too_many(
    own_store: Store, clock: FakeClock, name: str, records: int
) -> None:
    limits = {60: 50, 7: 9}
    rates = [f"{calls}/{seconds} seconds" for seconds, calls in limits.items()]
    guard = guard_with(own_store, clock, rate_limits=rates)
    admitted: list[int] = []
    refused = 0
    for at, _ in arrivals(name)[:records]:
        clock.now = NOON + at / US
        room = all(
            sum(each > at - seconds * US for each in admitted[-calls:]) < calls
            for seconds, calls in limits.items()
        )
        try:
            async with guard.admit(call(), facts()):
                pass
        except GuardDeniedError as error:
            refused += 1
            assert not room
            again = at + round(error.details["retry_after"] * US)
            oldest = [
                admitted[-calls] + seconds * US
                for seconds, calls in limits.items()
                if len(admitted) >= calls and admitted[-calls] > at - seconds * US
            ]
            assert again == max(oldest)
        else:
            assert room
            admitted.append(at)

    assert refused > 100
    for seconds, calls in limits.items():
        spans = zip(admitted, admitted[calls:], strict=False)
        assert all(last - first >= seconds * US for first, last in spans)


@pytest.mark.parametrize("name", TRACES)
@REPLAYS
async def test_a_bucket_decides_as_a_plain_one_record_by_record(
    own_store: Store, clock: FakeClock, name: str, records: int
) -> None:
    rate = {"limit": "60/minute", "algorithm": "bucket", "burst": 5}
    guard = guard_with(own_store, clock, rate_limits=[rate])
    tokens, last = Fraction(5), 0
    for at, _ in arrivals(name)[:records]:
        clock.now = NOON + at / US
        tokens, last = min(tokens + Fraction(at - last, US), Fraction(5)), at
        told = await guard.decide(call(), facts())
        assert told.allowed is (tokens >= 1)
        if told.allowed:
            tokens -= 1
            async with guard.admit(call(), facts()):
                pass


@pytest.mark.parametrize("name", TRACES)
@REPLAYS
def test_tokens_charged_are_the_tokens_admitted_also_with_64_threads(
    store: Store, clock: FakeClock, name: str, records: int
) -> None:
    requests = [tokens for _, tokens in arrivals(name)[: min(records, 1280)]]
    limit = sum(requests) // 2
    guard = guard_with(store, clock, budgets=[{"unit": "tokens", "limit": limit}])
    charged: list[int] = []
    refused: list[int] = []

    async def replay(number: int) -> None:
        for tokens in requests[number::64]:
            try:
                async with guard.admit(call(), facts(tokens=tokens)) as permit:
                    await permit.settle({"tokens": tokens})
                charged.append(tokens)
            except GuardDeniedError as error:
                assert error.details["reason"] == "budget_exceeded"
                refused.append(tokens)

    in_threads(64, replay)
    told = run_apart(guard.decide, call(), facts())
    left = limit - sum(charged)
    assert told.remaining == {"a tokens/total": left}
    assert sorted(charged + refused) == sorted(requests)
    assert 0 <= left < min(refused)
