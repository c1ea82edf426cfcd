"""When a failed call is tried again, and when a tool is not called at all."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import ValidationError

from toolcell.core import ToolExecutionError
from toolcell.tools import CircuitBreaker, RetryPolicy


class Clock:
    """Seconds that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.promise("GR-07")
def test_pauses_double_up_to_the_longest() -> None:
    policy = RetryPolicy(first_seconds=0.5, longest_seconds=3, max_attempts=9)

    longest = [policy.pause(attempt, lambda: 1.0) for attempt in range(1, 6)]
    assert longest == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert policy.pause(3, lambda: 0.25) == 0.5
    assert policy.pause(3, lambda: 0.0) == 0.0


@pytest.mark.parametrize(
    "wrong", [{"max_attempts": 0}, {"first_seconds": float("nan")}, {"retries": 3}]
)
def test_bad_policies_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        RetryPolicy(**wrong)  # type: ignore[arg-type]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(failure_threshold=2, recovery_seconds=10, clock=clock)


def fail(breaker: CircuitBreaker, times: int) -> None:
    for _ in range(times):
        breaker.enter("t").end("failed")


@pytest.mark.promise("RL-12")
def test_a_circuit_opens_after_failures_in_a_row(breaker: CircuitBreaker) -> None:
    fail(breaker, 1)
    breaker.enter("t").end("ok")
    fail(breaker, 1)
    breaker.enter("t").end("none")
    assert breaker.state("t") == "closed"
    fail(breaker, 1)

    assert breaker.state("t") == "open"
    with pytest.raises(ToolExecutionError) as raised:
        breaker.enter("t")
    assert raised.value.details == {"circuit": "open", "retry_after": 10.0}
    breaker.enter("another tool").end("ok")


@pytest.mark.promise("RL-12")
def test_one_call_tries_a_circuit_out(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, 2)
    clock.now = 10
    assert breaker.state("t") == "half_open"
    probe = breaker.enter("t")
    with pytest.raises(ToolExecutionError):
        breaker.enter("t")
    probe.end("failed")
    assert breaker.state("t") == "open"
    clock.now = 20
    breaker.enter("t").end("ok")

    assert breaker.state("t") == "closed"


def test_a_probe_that_says_nothing_frees_its_place(
    breaker: CircuitBreaker, clock: Clock
) -> None:
    fail(breaker, 2)
    clock.now = 10
    breaker.enter("t").end("none")

    breaker.enter("t").end("ok")
    assert breaker.state("t") == "closed"


def test_a_late_call_does_not_end_a_probe(
    breaker: CircuitBreaker, clock: Clock
) -> None:
    late = breaker.enter("t")
    fail(breaker, 2)
    clock.now = 10
    breaker.enter("t")
    late.end("none")

    with pytest.raises(ToolExecutionError):
        breaker.enter("t")


@pytest.mark.promise("RL-12")
@pytest.mark.parametrize("outcome", ["ok", "failed"])
def test_a_call_from_before_a_circuit_opened_says_nothing(
    breaker: CircuitBreaker, clock: Clock, outcome: Literal["ok", "failed"]
) -> None:
    late, later = breaker.enter("t"), breaker.enter("t")
    fail(breaker, 2)
    clock.now = 5
    late.end(outcome)
    assert breaker.state("t") == "open"
    # Nor does it put the next trial off.
    clock.now = 10
    assert breaker.state("t") == "half_open"
    breaker.enter("t").end("ok")
    later.end(outcome)
    fail(breaker, 1)
    assert breaker.state("t") == "closed"
