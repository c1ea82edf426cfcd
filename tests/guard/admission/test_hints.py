"""What a refusal tells people to do."""

from __future__ import annotations

import pytest

from toolcell.guard import ActionGuard, AgentPolicy, Decision

from ...support.guard.builders import NOON, FakeClock, call, facts, refusal, spend


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.001, "0.1 s"),
        (2.25, "2.3 s"),
        (9.99, "10 s"),
        (30.0, "30 s"),
        (119.2, "120 s"),
        (33_220.024759, "9 h 14 min"),
        (1_388_800.2, "16 d 1 h 47 min"),
    ],
)
def test_the_time_to_wait_is_never_told_too_short(seconds: float, told: str) -> None:
    error = Decision("deny", "rate_limited", retry_after=seconds).to_error()

    assert error.hint == f"try again in {told}"
    assert error.details["retry_after"] == seconds


@pytest.mark.promise("JA5")
@pytest.mark.parametrize(
    ("now", "seconds", "told"),
    [
        (NOON, 6400.0, "at 00:00 UTC (in 1 h 47 min)"),
        (NOON, 3600.5, "at 23:14 UTC (in 1 h 1 min)"),
        (NOON, 1_388_800.0, "on 2023-12-01 at 00:00 UTC (in 16 d 1 h 47 min)"),
        (NOON, 30.0, "in 30 s"),
    ],
)
def test_a_long_wait_is_told_as_a_time_of_the_day(
    now: float, seconds: float, told: str
) -> None:
    decision = Decision("deny", "rate_limited", retry_after=seconds, decided_at=now)

    assert decision.to_error().hint == f"try again {told}"


@pytest.mark.promise("JA4")
@pytest.mark.anyio
async def test_a_refusal_by_a_budget_says_what_is_used_held_and_asked() -> None:
    budget = {"unit": "cpu_ms", "limit": 60_000, "window": "day"}
    policy = AgentPolicy(agent_id="a", allow=["*"], budgets=[budget])
    guard = ActionGuard([policy], clock=FakeClock())
    await spend(guard, call(), facts(cpu_ms=29), cpu_ms=29)

    async with guard.admit(call(), facts(cpu_ms=30_000)):
        held = await refusal(guard, call(), facts(cpu_ms=30_000))
        # It fits as soon as the call that runs has used less than it holds.
        assert held["retry_after"] == 1
        assert held["detail"] == (
            "the limit 'a cpu_ms/day' of 60000 has no room: 29 used, 30000 held by "
            "calls that run, and this call may use up to 30000; up to 29971 fits now"
        )
        tomorrow = await refusal(guard, call(), facts(cpu_ms=59_980))
        assert tomorrow["retry_after"] == 6400
    assert (await guard.decide(call(), facts(cpu_ms=29_971))).allowed
    never = await refusal(guard, call(), facts(cpu_ms=60_001))
    assert never["detail"].endswith(", more than it ever has; up to 29971 fits now")
    assert "retry_after" not in never
    await spend(guard, call(), facts(cpu_ms=29_971), cpu_ms=29_971)
    spent = await refusal(guard, call(), facts(cpu_ms=1))
    assert spent["detail"].endswith("may use up to 1; up to 0 fits now")
