"""One joint admission: what it takes, refuses, says and gives back."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import ValidationError

from toolcell.core import (
    AuditError,
    GuardDeniedError,
    InvalidInputError,
    PolicyError,
    ToolCall,
    ToolTimeoutError,
)
from toolcell.guard import (
    ActionGuard,
    AgentPolicy,
    AuditLog,
    CallFacts,
    MemoryStore,
    verify_audit,
)

from ...support.guard.builders import FREE, FakeClock, call, facts, refusal, spend

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("RG-21 RG-22 RG-23 RG-24 RG-25 RG-27"),
]


def guard_with(clock: FakeClock | None = None, **fields: Any) -> ActionGuard:
    clock = clock or FakeClock()
    return ActionGuard([AgentPolicy(agent_id="a", allow=["*"], **fields)], clock=clock)


def usd(limit: str, **options: Any) -> dict[str, Any]:
    return {"unit": "usd", "limit": limit, **options}


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def left(guard: ActionGuard, known: CallFacts = FREE) -> dict[str, Any]:
    return dict((await guard.decide(call(), known)).remaining)


async def test_a_decision_says_all_that_a_caller_needs() -> None:
    clock = FakeClock()
    guard = guard_with(clock, rate_limits=["2/minute"], budgets=[usd("2.00")])

    first = await spend(guard, call(), facts(usd="0.5"), usd="0.25")
    assert first.to_json() == {
        "verdict": "allow",
        "reason": "allowed",
        "rule": "a.allow[0]",
        "remaining": {"a 2 calls/60 s": 1, "a usd/total": "1.50"},
        "policy_version": guard.policy_version,
    }
    clock.now += 15
    await spend(guard, call())
    clock.now += 15
    denied = await refusal(guard, call())
    assert denied == {
        "verdict": "deny",
        "reason": "rate_limited",
        "detail": "the limit 'a 2 calls/60 s' of 2 is reached",
        "rule": "a 2 calls/60 s",
        "retry_after": 30.0,
        "remaining": {"a 2 calls/60 s": 0, "a usd/total": "1.75"},
        "policy_version": guard.policy_version,
    }
    with pytest.raises(GuardDeniedError, match=r"try again in 30 s"):
        async with guard.admit(call(), FREE):
            pass
    clock.now += 29.999
    assert (await guard.decide(call(), FREE)).retry_after == pytest.approx(0.001)
    clock.now += 0.001
    assert (await guard.decide(call(), FREE)).allowed


async def test_a_decision_explained_consumes_nothing() -> None:
    guard = guard_with(
        rate_limits=["1/minute"], budgets=[{"unit": "calls", "limit": 1}]
    )

    for _ in range(5):
        assert (await guard.decide(call(), FREE)).allowed
    await spend(guard, call())
    told = await guard.decide(call(), FREE)
    refused = await refusal(guard, call())
    assert {**told.to_json(), "tried": []} == {**refused, "tried": []}


async def test_a_refusal_consumes_nothing_anywhere() -> None:
    guard = guard_with(
        rate_limits=["5/minute", {"limit": "5/hour", "algorithm": "bucket"}],
        max_concurrency=5,
        budgets=[usd("1"), {"unit": "tokens", "limit": 10, "window": "run"}],
    )
    before = await left(guard)

    for _ in range(10):
        denied = await refusal(guard, call(), facts(usd="0.5", tokens=11))
        assert denied["rule"] == "a tokens/run"
    assert await left(guard) == before


async def test_the_budget_is_part_of_the_decision() -> None:
    guard = guard_with(budgets=[usd("1.00")])

    await spend(guard, call(), facts(usd="0.999999"), usd="0.999999")
    await spend(guard, call(), facts(usd="0.000001"), usd="0.000001")
    assert (await refusal(guard, call(), facts(usd="0.000001")))["reason"] == (
        "budget_exceeded"
    )
    assert (await guard.decide(call(), FREE)).allowed


@pytest.mark.parametrize(
    ("window", "rest"), [("hour", 2800.0), ("day", 6400.0), ("month", 1_388_800.0)]
)
async def test_budgets_start_anew_with_their_window(window: str, rest: float) -> None:
    clock = FakeClock()
    guard = guard_with(clock, budgets=[usd("1", window=window)])
    await spend(guard, call(), facts(usd="1"), usd="1")

    denied = await refusal(guard, call(), facts(usd="0.1"))
    assert denied["retry_after"] == rest
    # What never fits does not fit later either.
    assert "retry_after" not in await refusal(guard, call(), facts(usd="1.1"))
    clock.now += rest - 0.001
    assert not (await guard.decide(call(), facts(usd="0.1"))).allowed
    clock.now += 0.001
    assert await left(guard) == {f"a usd/{window}": "1.00"}
    clock.now -= 0.001
    assert await left(guard) == {f"a usd/{window}": "0.00"}


async def test_scopes_are_counted_apart_and_together() -> None:
    both = {"allow": ["*"], "rate_limits": [{"limit": "3/minute", "per": "tool"}]}
    guard = ActionGuard(
        [
            AgentPolicy(
                agent_id=name,
                **both,
                budgets=[
                    {"unit": "calls", "limit": 4, "per": "global"},
                    {"unit": "calls", "limit": 2, "per": "agent_tool"},
                    {"unit": "calls", "limit": 1, "window": "run", "tools": ["z*"]},
                ],
            )
            for name in ("a", "b")
        ]
    )
    await spend(guard, call("x", "a"))
    await spend(guard, call("x", "a"))
    assert (await refusal(guard, call("x", "a")))["rule"] == "a x calls/total"
    await spend(guard, call("x", "b"))
    assert (await refusal(guard, call("x", "b")))["rule"] == "x 3 calls/60 s"
    await spend(guard, call("z", "b"))
    assert (await refusal(guard, call("y", "b")))["rule"] == "all calls/total"


async def test_limits_that_need_to_know_the_run_say_so() -> None:
    guard = guard_with(max_calls_per_turn=2, budgets=[usd("1", window="run")])

    assert (await refusal(guard, call(), CallFacts(cost={})))[
        "reason"
    ] == "facts_missing"
    assert (await guard.decide(call(), CallFacts(cost={}))).reason == "facts_missing"
    for run, turn in (("r", "1"), ("r", "1"), ("r", "2"), ("s", "1")):
        await spend(guard, call(), CallFacts(cost={}, run_id=run, turn=turn))
    denied = await refusal(guard, call(), CallFacts(cost={}, run_id="r", turn="1"))
    assert denied["reason"] == "turn_limit"


async def test_slots_are_free_again_when_calls_end() -> None:
    guard = guard_with(max_concurrency=2)

    async with guard.admit(call(), FREE) as first, guard.admit(call(), FREE):
        assert (await refusal(guard, call()))["reason"] == "concurrency"
        await first.settle()
        async with guard.admit(call(), FREE):
            assert (await refusal(guard, call()))["reason"] == "concurrency"
    assert await left(guard) == {"a max_concurrency": 2}


async def test_a_permit_is_for_one_call_and_settles_once() -> None:
    guard = guard_with(budgets=[usd("1")])
    permit = guard.admit(call(), facts(usd="0.5"))
    with pytest.raises(InvalidInputError, match="not been admitted"):
        assert permit.decision

    async with permit:
        assert await permit.settle({"usd": "0.1", "wall_ms": 5})
        assert not await permit.settle({"usd": "0.1"})
    assert not await permit.settle({"usd": "0.1"})
    with pytest.raises(InvalidInputError, match="one call"):
        await permit.__aenter__()
    assert await left(guard) == {"a usd/total": "0.90"}


@pytest.mark.promise("E-115")
@pytest.mark.parametrize("error", [None, ValueError("x"), ToolTimeoutError("x")])
@pytest.mark.parametrize(("rule", "rest"), [("charge", "0.40"), ("refund", "1.00")])
async def test_a_call_that_never_says_is_charged_by_rule(
    error: Exception | None, rule: str, rest: str
) -> None:
    guard = guard_with(budgets=[usd("1", unsettled=rule)])

    try:
        async with guard.admit(call(), facts(usd="0.6")):
            if error is not None:
                raise error
    except (ValueError, ToolTimeoutError) as raised:
        assert raised is error
    assert await left(guard) == {"a usd/total": rest}


@pytest.mark.promise("E-115")
async def test_a_failing_call_pays_for_what_it_used() -> None:
    guard = guard_with(budgets=[{"unit": "cpu_ms", "limit": 1000}])

    async with guard.admit(call(), facts(cpu_ms=500)) as permit:
        await permit.settle({"cpu_ms": 499}, status="error", error_kind="crash")
    assert await left(guard, facts(cpu_ms=0)) == {"a cpu_ms/total": 501}


async def test_unnamed_units_cost_what_was_held() -> None:
    guard = guard_with(budgets=[usd("1"), {"unit": "tokens", "limit": 10}])

    await spend(guard, call(), facts(usd="0.5", tokens=4), usd="0.1")
    assert await left(guard) == {"a usd/total": "0.90", "a tokens/total": 6}


async def test_what_is_not_declared_holds_all_that_is_left() -> None:
    guard = guard_with(budgets=[usd("1"), {"unit": "cpu_ms", "limit": 100}])

    async with guard.admit(call()) as permit:
        assert (await refusal(guard, call()))["reason"] == "budget_exceeded"
        await permit.settle({"usd": "0.25", "cpu_ms": 10})
    assert await left(guard, facts(cpu_ms=0)) == {
        "a usd/total": "0.75",
        "a cpu_ms/total": 90,
    }
    # usd that are not named are none, CPU time that is not named is not known.
    async with guard.admit(call(), FREE) as permit:
        assert permit.decision.remaining == {"a usd/total": "0.75", "a cpu_ms/total": 0}
        await permit.settle({"cpu_ms": 1})


async def test_a_child_draws_on_its_parents_budget() -> None:
    guard = ActionGuard(
        [
            AgentPolicy(agent_id="boss", allow=["*"], budgets=[usd("1")]),
            AgentPolicy(agent_id="a", allow=["*"], parent="boss", budgets=[usd("0.7")]),
            AgentPolicy(agent_id="b", allow=["*"], parent="boss", budgets=[usd("0.7")]),
        ]
    )

    await spend(guard, call("add", "a"), facts(usd="0.6"), usd="0.6")
    denied = await refusal(guard, call("add", "b"), facts(usd="0.5"))
    assert denied["rule"] == "boss usd/total"
    await spend(guard, call("add", "b"), facts(usd="0.4"), usd="0.4")
    assert not (await guard.decide(call("add", "boss"), facts(usd="0.1"))).allowed


async def test_shared_counters_of_a_family_are_charged_once() -> None:
    shared = {"unit": "calls", "per": "global"}
    guard = ActionGuard(
        [
            AgentPolicy(agent_id="boss", allow=["*"], budgets=[{**shared, "limit": 3}]),
            AgentPolicy(
                agent_id="a",
                parent="boss",
                allow=["*"],
                budgets=[{**shared, "limit": 2}],
                rate_limits=[{"limit": "9/minute", "per": "tool"}],
            ),
        ]
    )

    await spend(guard, call())
    await spend(guard, call())
    denied = await refusal(guard, call())
    assert denied["remaining"] == {"add 9 calls/60 s": 7, "all calls/total": 0}
    await spend(guard, call("add", "boss"))


async def test_calls_in_a_row_are_stopped() -> None:
    guard = guard_with(max_consecutive_calls=2)

    await spend(guard, call("poll"))
    await spend(guard, call("poll"))
    assert (await guard.decide(call("poll"), FREE)).reason == "consecutive"
    assert (await refusal(guard, call("poll")))["reason"] == "consecutive"
    await spend(guard, call("other"))
    await spend(guard, call("poll"))
    await spend(guard, call("poll"), CallFacts(cost={}, run_id="s", turn="1"))


async def test_a_refused_call_does_not_break_or_lengthen_a_row() -> None:
    guard = guard_with(
        max_consecutive_calls=1, budgets=[{"unit": "tokens", "limit": 1}]
    )

    await refusal(guard, call("poll"), facts(tokens=2))
    await spend(guard, call("poll"))
    await refusal(guard, call("other"), facts(tokens=2))
    assert (await refusal(guard, call("poll")))["reason"] == "consecutive"


async def test_the_same_call_with_the_same_result_is_stopped() -> None:
    guard = guard_with(max_identical_results=2)

    async def ask(result: object, **arguments: Any) -> None:
        async with guard.admit(call("look", **arguments), FREE) as permit:
            await permit.settle(result=result)

    await ask("nothing", page=1)
    await ask("nothing", page=2)
    await ask("something", page=1)
    await ask("nothing", page=1)
    assert (await refusal(guard, call("look", page=1)))["reason"] == "repeated"
    await ask("nothing", page=2)
    assert (await guard.decide(call("look", page=2), FREE)).reason == "repeated"
    assert (await guard.decide(call("look", page=3), FREE)).allowed


async def test_policies_are_replaced_as_a_whole_and_the_last_good_are_kept() -> None:
    guard = guard_with(budgets=[usd("1")])
    old = guard.policy_version

    async with guard.admit(call(), facts(usd="0.5")) as permit:
        with pytest.raises(PolicyError):
            guard.replace_policies([AgentPolicy(agent_id="a", parent="nobody")])
        assert guard.policy_version == old
        fewer = AgentPolicy(agent_id="a", allow=["sub"], budgets=[usd("0.6")])
        assert guard.replace_policies([fewer]) == guard.policy_version != old
        assert (await refusal(guard, call()))["reason"] == "not_allowed"
        await permit.settle({"usd": "0.1"})
    told = await guard.decide(call("sub"), FREE)
    assert told.remaining == {"a usd/total": "0.50"}
    assert (permit.decision.policy_version, told.policy_version) == (
        old,
        guard.policy_version,
    )


async def test_a_reset_is_an_act_of_a_person_and_recorded(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit.jsonl") as audit:
        policy = AgentPolicy(agent_id="a", allow=["*"], budgets=[usd("1")])
        guard = ActionGuard([policy], audit=audit)
        await spend(guard, call(), facts(usd="1"), usd="1")

        for agent, by in (("a", ""), ("a", "a"), ("a", " A."), ("b", "pat")):
            with pytest.raises(InvalidInputError):
                await guard.reset(agent, by=by)
        assert await guard.reset("a", by="pat") == 1
        assert await left(guard) == {"a usd/total": "1.00"}
    events = records_of(tmp_path / "audit.jsonl")
    assert [event["event"] for event in events][-3:] == ["decision", "outcome", "reset"]
    assert (events[-1]["by"], events[-1]["agent_id"]) == ("pat", "a")


async def test_decision_and_outcome_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as audit:
        policy = AgentPolicy(agent_id="a", allow=["add"], budgets=[usd("1")])
        guard = ActionGuard([policy], audit=audit)
        async with guard.admit(call(), facts(usd="0.5")) as permit:
            await permit.settle({"usd": "0.2", "wall_ms": 7}, result=[1])
        await refusal(guard, call("rm"))
        with pytest.raises(ToolTimeoutError):
            async with guard.admit(call(), facts(usd="0.5")):
                raise ToolTimeoutError("late")

    assert verify_audit(path).ok
    events = records_of(path)
    assert [(e["event"], e.get("reason"), e.get("status")) for e in events] == [
        ("decision", "allowed", None),
        ("outcome", None, "ok"),
        ("decision", "not_allowed", None),
        ("decision", "allowed", None),
        ("outcome", None, "error"),
    ]
    assert events[1]["cost"] == {"usd": "0.20", "wall_ms": 7}
    assert (events[4]["cost"], events[4]["error_kind"]) == (
        {"usd": "0.50"},
        "tool.timeout",
    )
    assert events[0]["hold_id"] == events[1]["hold_id"]


async def test_what_cannot_be_recorded_is_not_admitted(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit.jsonl")
    policy = AgentPolicy(agent_id="a", allow=["*"], budgets=[usd("1")])
    guard = ActionGuard([policy], audit=audit)
    audit.close()

    for asked in (call(), call("é")):
        with pytest.raises(AuditError):
            async with guard.admit(asked, facts(usd="0.5")):
                raise AssertionError("admitted")
    assert await left(guard) == {"a usd/total": "1.00"}


async def test_an_error_is_not_lost_for_want_of_a_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = AuditLog(tmp_path / "audit.jsonl")
    guard = ActionGuard([AgentPolicy(agent_id="a", allow=["*"])], audit=audit)

    with pytest.raises(ToolTimeoutError):
        async with guard.admit(call(), FREE):
            audit.close()
            raise ToolTimeoutError("late")
    assert "not recorded" in caplog.text


async def test_a_fault_of_the_guard_is_a_refusal(caplog: Any) -> None:
    def broken() -> float:
        raise ZeroDivisionError

    policy = AgentPolicy(agent_id="a", allow=["*"], budgets=[usd("1")])
    guard = ActionGuard([policy], store=MemoryStore(), clock=broken)

    with caplog.at_level(logging.ERROR):
        assert (await refusal(guard, call()))["reason"] == "guard_fault"
        assert (await guard.decide(call(), FREE)).reason == "guard_fault"
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.promise("E-89")
async def test_what_was_checked_is_what_runs() -> None:
    path = {"under": "/data"}
    policy = AgentPolicy(
        agent_id="a", allow=[{"tools": ["open"], "when": {"path": path}}]
    )
    mine: dict[str, Any] = {"path": "/data/a"}
    asked = ToolCall(id="1", name="open", arguments=mine, agent_id="a")

    async with ActionGuard([policy]).admit(asked, FREE) as permit:
        mine["path"] = "/etc/passwd"
        assert permit.call.arguments == {"path": "/data/a"}
        with pytest.raises(ValidationError):
            permit.call.arguments = mine


async def test_a_call_that_is_cancelled_is_settled() -> None:
    guard = guard_with(budgets=[usd("1")], max_concurrency=1)

    with anyio.CancelScope() as scope:
        async with guard.admit(call(), facts(usd="0.5")):
            scope.cancel()
            await anyio.sleep_forever()
    assert await left(guard) == {"a max_concurrency": 1, "a usd/total": "0.50"}


@pytest.mark.promise("E-118")
async def test_a_million_keys_do_not_fill_the_memory_nor_forgive() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock, max_keys=100)
    policy = AgentPolicy(
        agent_id="a",
        allow=["*"],
        rate_limits=[{"limit": "1/second", "per": "agent_tool"}],
        budgets=[{"unit": "calls", "limit": 2, "tools": ["rare"]}],
    )
    guard = ActionGuard(
        [policy], store=store, clock=clock, on_store_failure="local(1000)"
    )
    await spend(guard, call("rare"))

    refused = 0
    for number in range(2000):
        decision = None
        try:
            decision = await spend(guard, call(f"tool{number}"))
        except Exception as error:
            assert "store is full" in str(error)
            refused += 1
        assert decision is not None or number % 200 >= 98
        if number % 200 == 199:
            clock.now += 1
    assert refused > 0
    await spend(guard, call("rare"))
    clock.now += 1
    assert (await refusal(guard, call("rare")))["reason"] == "budget_exceeded"
