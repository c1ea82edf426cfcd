"""What policies accept, and what their rules mean."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from toolcell.core import InvalidInputError, PolicyError, ToolCall
from toolcell.guard import ActionGuard, AgentPolicy, Budget, CallFacts
from toolcell.guard.spi import Condition, RateLimit, Rule

from ...support.guard.builders import FREE, call, facts, refusal, spend

pytestmark = pytest.mark.anyio


def guard_with(**fields: Any) -> ActionGuard:
    return ActionGuard([AgentPolicy(agent_id="a", **fields)])


@pytest.mark.promise("RG-20", "RG-38")
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"agent_id": ""}, "agent_id"),
        ({"agent_id": "a b"}, "agent_id"),
        ({"agent_id": "а"}, "agent_id"),
        ({"agent_id": "a\n"}, "agent_id"),
        ({"allow_tools": ["x"]}, "allow_tools"),
        ({"allow": ["x y"]}, "neither a tool's name"),
        ({"allow": ["ехес"]}, "neither a tool's name"),
        ({"allow": [{}]}, "a rule needs"),
        ({"allow": ["@nothing"]}, "no group"),
        ({"allow": [{"tools": ["x"], "dry_run": True}]}, "cannot be on trial"),
        ({"allow": [{"tools": ["x"], "when": {"n": {}}}]}, "says nothing"),
        ({"allow": [{"tools": ["x"], "when": {"n": {"mn": 1}}}]}, "allow.0.when.n.mn"),
        ({"deny": [{"tools": ["x"], "when": {"n": {"matches": "("}}}]}, "linear"),
        ({"deny": [{"tools": ["x"], "when": {"n": {"matches": "a)|(b"}}}]}, "linear"),
        ({"deny": [{"tools": ["x"], "when": {"n": {"matches": r"(a)\1"}}}]}, "linear"),
        ({"deny": [{"tools": ["x"], "when": {"n": {"under": "/a/.."}}}]}, "plain path"),
        ({"deny": [{"tools": ["x"], "when": {"n": {"min": float("nan")}}}]}, "finite"),
        ({"rate_limits": ["60/fortnight"]}, "not a rate"),
        ({"rate_limits": ["-1/minute"]}, "not a rate"),
        ({"rate_limits": [{"calls": -1, "seconds": 60}]}, "calls"),
        ({"rate_limits": [{"calls": True, "seconds": 60}]}, "calls"),
        ({"rate_limits": ["1/minute", "2/minute"]}, "count the same"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"max_concurrency": float("inf")}, "max_concurrency"),
        ({"max_calls_per_turn": -1}, "max_calls_per_turn"),
        ({"budgets": [{"unit": "eur", "limit": "1"}]}, "unit"),
        ({"budgets": [{"unit": "usd", "limit": 1.5}]}, "decimal as text"),
        ({"budgets": [{"unit": "usd", "limit": float("nan")}]}, "decimal as text"),
        ({"budgets": [{"unit": "usd", "limit": "NaN"}]}, "usd cannot be"),
        ({"budgets": [{"unit": "usd", "limit": "Infinity"}]}, "usd cannot be"),
        ({"budgets": [{"unit": "usd", "limit": "-1"}]}, "usd cannot be"),
        ({"budgets": [{"unit": "usd", "limit": "1e3"}]}, "usd cannot be"),
        ({"budgets": [{"unit": "usd", "limit": "0.0000001"}]}, "six decimal"),
        ({"budgets": [{"unit": "tokens", "limit": "5"}]}, "whole numbers"),
        ({"budgets": [{"unit": "tokens", "limit": 10**16}]}, "too large"),
        ({"allowed_tools": None}, "must be a list"),
        ({"allowed_tools": "*"}, "must be a list"),
        ({"max_cost_usd": float("nan")}, "finite"),
        ({"max_cost_usd": -1.0}, "usd cannot be"),
        ({"max_calls_per_minute": -1}, "calls"),
        ({"max_tool_calls_per_turn": 1, "max_calls_per_turn": 2}, "keep one"),
    ],
)
def test_a_bad_policy_is_refused_with_its_place(
    fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        AgentPolicy(**{"agent_id": "a", **fields})

    assert said in caught.value.message


def test_parts_of_a_policy_are_refused_by_the_same_error() -> None:
    bad: list[tuple[Any, dict[str, Any]]] = [
        (Budget, {"unit": "usd", "limit": 0.1}),
        (Rule, {}),
        (Condition, {}),
        (RateLimit, {"limit": "x"}),
    ]
    for part, fields in bad:
        with pytest.raises(PolicyError, match=part.__name__):
            part(**fields)


def test_policies_must_fit_each_other() -> None:
    def policies(*made: tuple[str, str | None]) -> list[AgentPolicy]:
        return [AgentPolicy(agent_id=name, parent=parent) for name, parent in made]

    for made, said in [
        (policies(("a", None), ("a", None)), "two policies"),
        (policies(("a", None), ("A", None)), "only in case"),
        (policies(("a", "b")), "no parent"),
        (policies(("a", "b"), ("b", "a")), "own ancestor"),
        (policies(("a", "a")), "own ancestor"),
    ]:
        with pytest.raises(PolicyError, match=said):
            ActionGuard(made)


@pytest.mark.promise("E-112", "E-120", "GR-24", "RG-40")
@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (call("add", None), "no_agent"),
        (call("add", "b"), "no_policy"),
        (call("add", "A"), "no_policy"),
        (call("add", "a "), "no_policy"),
        (call("sub"), "not_allowed"),
        (call("add2"), "not_allowed"),
        (call("Add"), "not_allowed"),
        (call("аdd"), "bad_call"),
        (call("add\n"), "bad_call"),
        (call("add|x"), "bad_call"),
        (ToolCall(id="1", name="add", agent_id="a", malformed="{"), "bad_call"),
    ],
)
async def test_what_no_rule_names_is_refused(asked: Any, reason: str) -> None:
    guard = guard_with(allow=["add", "search_*"])

    assert (await refusal(guard, asked))["reason"] == reason
    assert (await guard.decide(asked, FREE)).reason == reason


@pytest.mark.promise("RG-20")
async def test_an_empty_list_is_nothing_never_everything() -> None:
    empty: list[dict[str, Any]] = [
        {},
        {"allowed_tools": []},
        {"allow": []},
        {"denied_tools": ["x"]},
    ]
    for fields in empty:
        assert (await refusal(guard_with(**fields), call()))["reason"] == "not_allowed"
    assert (await refusal(ActionGuard([]), call()))["reason"] == "no_policy"


@pytest.mark.promise("RG-22")
async def test_a_glob_only_where_written_as_one() -> None:
    guard = guard_with(allow=["add", "search_*", "@harmless"])

    assert (await guard.decide(call("search_web"), FREE)).allowed
    assert (await guard.decide(call("calculate"), FREE)).allowed
    assert not (await guard.decide(call("search"), FREE)).allowed
    assert not (await guard.decide(call("add_all"), FREE)).allowed


@pytest.mark.promise("RG-22", "RA-04")
async def test_deny_comes_before_ask_before_allow() -> None:
    guard = guard_with(
        allow=["*"], ask=["write_*", "rm"], deny=["rm"], groups={"mine": ["x"]}
    )

    verdicts = [
        (await guard.decide(call(name), FREE)).verdict
        for name in ("rm", "write_file", "read_file")
    ]
    assert verdicts == ["deny", "ask", "allow"]


async def test_tags_and_versions_narrow_a_rule() -> None:
    guard = guard_with(
        allow=[{"tags": ["safe", "fast"]}, {"tools": ["old"], "versions": ["1"]}],
    )

    def tagged(*tags: str, version: str = "") -> CallFacts:
        return CallFacts(cost={}, tags=frozenset(tags), version=version)

    assert (await guard.decide(call("x"), tagged("safe", "fast", "new"))).allowed
    assert not (await guard.decide(call("x"), tagged("safe"))).allowed
    assert (await guard.decide(call("old"), tagged(version="1"))).allowed
    assert not (await guard.decide(call("old"), tagged(version="2"))).allowed


@pytest.mark.promise("GR-25", "RG-20", "RG-27")
async def test_reference_words_have_safe_meanings() -> None:
    guard = guard_with(
        allowed_tools=["add", "fetch"],
        denied_tools=["rm"],
        max_calls_per_minute=2,
        max_cost_usd=0.3,
        denied_domains=["Evil.com."],
        max_tool_calls_per_turn=20,
        max_consecutive_tool_calls=5,
        require_human_approval_for=["pay"],
    )

    assert (await guard.decide(call("pay"), FREE)).verdict == "ask"
    assert (await refusal(guard, call("rm")))["reason"] == "denied"
    assert (await refusal(guard, call(), facts(usd="0.300001")))["reason"] == (
        "budget_exceeded"
    )
    await spend(guard, call(), facts(usd="0.1"), usd="0.1")
    await spend(guard, call(), facts(usd="0.2"), usd="0.2")
    assert (await refusal(guard, call()))["reason"] == "rate_limited"


@pytest.mark.promise("RG-40")
@pytest.mark.parametrize(
    "text",
    [
        "evil.com",
        "EVIL.com",
        "https://evil.com",
        "https://evil.com./x",
        "//evil.com/",
        "http://u:p@a.evil.com:8080/",
        "see https://evil.com for more",
        "https://evil%2ecom/",
        "https://ｅvil．com/",
        "https://evil。com/",
        "https://ev\u00adil.com/",
        "https://ok.test/?next=evil.com",
    ],
)
async def test_a_denied_domain_is_found_in_any_spelling(text: str) -> None:
    guard = guard_with(allow=["fetch"], denied_domains=["evil.COM"])

    for arguments in ({"url": text}, {"deep": [{"x": text}]}, {text: 1}):
        denied = await refusal(guard, call("fetch", **arguments))
        assert denied["rule"] == "denied_domains"
    assert (await guard.decide(call("fetch", url="https://notevil.com"), FREE)).allowed


async def test_a_child_has_what_both_allow() -> None:
    guard = ActionGuard(
        [
            AgentPolicy(agent_id="boss", allow=["*"], deny=["rm"], ask=["pay"]),
            AgentPolicy(agent_id="a", parent="boss", allow=["add", "rm", "pay"]),
        ]
    )

    verdicts = {
        name: (await guard.decide(call(name), FREE)).verdict
        for name in ("add", "rm", "pay", "sub")
    }
    assert verdicts == {"add": "allow", "rm": "deny", "pay": "ask", "sub": "deny"}


async def test_a_rule_on_trial_reports_and_does_nothing() -> None:
    guard = guard_with(
        allow=["add"],
        deny=[{"tools": ["add"], "dry_run": True, "name": "soon"}],
        rate_limits=[{"limit": "1/minute", "dry_run": True}],
        budgets=[{"unit": "calls", "limit": 1, "dry_run": True}],
    )

    first = await spend(guard, call())
    second = await spend(guard, call())
    assert first.would_deny == ("soon",)
    assert second.would_deny == ("soon", "a 1 calls/60 s", "a calls/total")


async def test_a_decision_tells_every_rule_that_was_tried() -> None:
    guard = guard_with(
        deny=[{"tools": ["add"], "when": {"n": {"min": 5}}}, "rm"],
        allow=["b*", "a*", "add"],
    )

    told = await guard.decide(call("add", n=1), FREE)
    assert [(each.rule, each.met, each.detail) for each in told.tried] == [
        ("a.deny[0]", False, "n: not met"),
        ("a.allow[1]", True, ""),
    ]
    assert told.rule == "a.allow[1]"
    unclear = await guard.decide(call("add", n="1"), FREE)
    assert unclear.tried[0].detail == "n: cannot be judged"
    assert unclear.policy_version == guard.policy_version


async def test_an_agent_sees_the_tools_that_it_might_call() -> None:
    guard = guard_with(
        allow=[{"tools": ["open"], "when": {"path": {"under": "/a"}}}, "rm"],
        ask=["pay"],
        deny=["rm", {"tools": ["open"], "when": {"mode": {"equals": "w"}}}],
    )

    seen = [
        name for name in ("open", "pay", "rm", "x", "é") if guard.may_allow("a", name)
    ]
    assert seen == ["open", "pay"]
    assert not guard.may_allow("b", "open")


@pytest.mark.parametrize(
    ("known", "may"),
    [
        ({}, True),
        ({"path": "/a/x"}, True),
        ({"path": "/b/x"}, False),
        ({"path": "/a/x", "mode": "w"}, False),
        ({"path": "/a/x", "mode": "W"}, False),
        ({"mode": "r"}, True),
        ({"path": "/ask"}, True),
        ({"path": "/ASK"}, True),
        ({"path": "/half", "mode": "r"}, True),
        ({"path": "/half", "user": "bo"}, False),
    ],
)
def test_what_may_be_allowed_follows_from_the_arguments_that_are_known(
    known: dict[str, Any], may: bool
) -> None:
    inside = {"tools": ["open"], "when": {"path": {"under": "/a"}}}
    half = {"tools": ["open"], "when": {"path": {"equals": "/half"}}}
    both = {"path": {"equals": "/half"}, "user": {"equals": "bo"}}
    guard = guard_with(
        allow=[inside, half],
        ask=[{"tools": ["open"], "when": {"path": {"equals": "/ask"}}}],
        deny=[
            {"tools": ["open"], "when": {"mode": {"equals": "w"}}},
            {"tools": ["open"], "when": both},
        ],
    )

    assert guard.may_allow("a", "open", known=known) is may


@pytest.mark.parametrize(
    ("when", "known", "may"),
    [
        ({"*": {"contains": "secret"}}, {"path": "/secret"}, False),
        ({"*": {"contains": "secret"}}, {"path": "/x"}, True),
        ({"*": {"max_length": 1}}, {"path": "/x"}, False),
        ({"path": {"equals": None}}, {}, False),
        ({"path": {"equals": "/x"}}, {}, True),
    ],
)
async def test_every_condition_is_judged_where_all_arguments_are_known(
    when: dict[str, Any], known: dict[str, Any], may: bool
) -> None:
    guard = guard_with(allow=["open"], deny=[{"tools": ["open"], "when": when}])

    assert guard.may_allow("a", "open", known=known)
    assert guard.may_allow("a", "open", known=known, complete=True) is may
    decision = await guard.decide(call("open", **known))
    assert decision.allowed is may


@pytest.mark.promise("E-116")
@pytest.mark.parametrize(
    "cost",
    [
        {"usd": float("nan")},
        {"usd": "NaN"},
        {"usd": Decimal("Infinity")},
        {"usd": "-0.01"},
        {"usd": 0.1},
        {"usd": True},
        {"usd": "9" * 30},
        {"usd": Decimal("1e400")},
        {"tokens": -1},
        {"tokens": 1.0},
        {"tokens": 10**16},
        {"dollars": 1},
    ],
)
async def test_a_bad_cost_is_refused_when_declared_and_when_charged(
    cost: dict[str, Any],
) -> None:
    guard = guard_with(allow=["add"], budgets=[{"unit": "usd", "limit": "1"}])

    with pytest.raises(InvalidInputError):
        CallFacts(cost=cost)
    with pytest.raises(InvalidInputError):
        async with guard.admit(call(), facts(usd="0.4")) as permit:
            await permit.settle(cost)
    # What was held is what it cost.
    assert (await guard.decide(call(), FREE)).remaining == {"a usd/total": "0.60"}


async def test_parts_of_a_micro_dollar_are_rounded_up() -> None:
    guard = guard_with(allow=["add"], budgets=[{"unit": "usd", "limit": "1"}])

    await spend(guard, call(), facts(usd="0.1"), usd="0.0000001")
    left = (await guard.decide(call(), FREE)).remaining
    assert left == {"a usd/total": "0.999999"}


def test_hold_seconds_have_a_range() -> None:
    for seconds in (0.0, -1.0, float("nan"), float("inf"), 1e9):
        with pytest.raises(InvalidInputError, match="hold_seconds"):
            CallFacts(hold_seconds=seconds)


def test_values_of_another_type_are_no_policy() -> None:
    wrong: Any = [{"agent_id": "a"}]
    with pytest.raises(
        PolicyError, match="a policy is an AgentPolicy, not of type dict"
    ):
        ActionGuard(wrong)
