"""Rules on generated arguments, against an oracle that weighs every possibility.

The oracle knows of each value whether it meets a condition: yes, no, or both where
programs differ. A deny or ask rule holds if that is possible, an allow rule if nothing
else is.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from toolcell.core import PolicyError, ToolCall
from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.tools import ConcurrentExecutor, JSONSchemaTool, Tool, ToolRegistry, tool

from ...conftest import run_apart
from ...support.guard.builders import FREE, call

YES, NO, BOTH = frozenset([True]), frozenset([False]), frozenset([True, False])
Possible = frozenset[bool]

# Each scalar, and the number for which some program takes it.
SCALARS: list[tuple[Any, float | None]] = [
    *((None, None), ("x", None), ("", None), ("a.b", None), ("/data/x", None)),
    *(("/etc/x", None), ("/data/../x", None), ("data/x", None)),
    *(("https://ok.test/", None), ("https://no.test/x", None), ("see no.test", None)),
    *((0, 0), (1, 1), (2.5, 2.5), (7, 7), (True, 1), (False, 0)),
    *(("0", 0), ("1", 1), ("1.0", 1), (" 1", 1), ("0x1", 1), ("01", 1), ("７", 7)),
    *(("true", 1), ("YES", 1), ("off", 0), ("2.5", 2.5), ("1e999", None)),
]
MEANT = {(type(value), value): number for value, number in SCALARS}
UNDER_DATA = {"/data/x": YES, "/etc/x": NO}
ON_OK_TEST = {"https://ok.test/": YES, "https://no.test/x": NO}
COMMANDS = [["ls"], ["ls", "x"], ["rm", "x"]]
KEYS = ["a", "b", "c", "a.b", "b.c", "a.b.c", "0", "x y", 'q"', "é", "*", ""]

scalars = st.sampled_from([value for value, _ in SCALARS])
values = st.recursive(
    scalars | st.sampled_from(COMMANDS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)
    ),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from(KEYS), values, max_size=4)
paths = st.lists(st.sampled_from(KEYS), min_size=1, max_size=3)
conditions = st.one_of(
    values.map(lambda value: {"equals": value}),
    st.lists(scalars, max_size=3).map(lambda many: {"one_of": many}),
    st.sampled_from(
        [
            *({"min": 1}, {"max": 1.5}, {"min": 0, "max": 2}),
            *({"matches": "x|[0-9]+"}, {"max_length": 1}, {"under": "/data"}),
            *({"host_in": ["ok.test"]}, {"mentions_host": ["no.test"]}),
            *({"argv": [["ls"], ["ls", "*"]]}, {"one_of": ["x"], "max_length": 2}),
        ]
    ),
)


def each_way(parts: Iterable[Possible], combine: Any) -> Possible:
    """Return what may come of parts of which each may be one or the other."""
    return frozenset(map(combine, itertools.product(*parts)))


def equal(left: Any, right: Any) -> Possible:
    if isinstance(left, dict) and isinstance(right, dict):
        if sorted(left) != sorted(right):
            return NO
        return each_way((equal(left[key], right[key]) for key in left), all)
    if isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            return NO
        return each_way(itertools.starmap(equal, zip(left, right, strict=True)), all)
    if isinstance(left, dict | list) or isinstance(right, dict | list):
        return NO
    numbers = {type(left), type(right)} <= {int, float}
    if type(left) is type(right) or numbers:
        return YES if left == right else NO
    meant = MEANT.get((type(left), left)), MEANT.get((type(right), right))
    return BOTH if meant[0] is not None and meant[0] == meant[1] else NO


def texts(value: Any) -> Iterable[str]:
    yield from re.findall(r'"((?:[^"\\]|\\.)*)"', json.dumps(value))


def one(word: str, wanted: Any, value: Any) -> Possible:
    """Return whether a value that is no list, or is meant as one, meets a word."""
    if word == "equals":
        return equal(value, wanted)
    if word == "one_of":
        return each_way((equal(value, each) for each in wanted), any)
    if word in ("min", "max"):
        if type(value) not in (int, float):
            return BOTH
        good = value >= wanted if word == "min" else value <= wanted
    elif word == "max_length":
        if not isinstance(value, str | list | dict):
            return BOTH
        good = len(value) <= wanted
    elif word == "matches":
        if not isinstance(value, str):
            return BOTH
        good = bool(re.fullmatch(wanted, value))
    elif word == "mentions_host":
        good = any("no.test" in text for text in texts(value))
    elif word == "argv":
        if not isinstance(value, list):
            return BOTH
        good = value[:1] == ["ls"] and len(value) <= 2 and "" not in value
        # `*` takes one argument, and no option.
        good = good and all(not part.startswith("-") for part in value)
    else:
        known = UNDER_DATA if word == "under" else ON_OK_TEST
        return known.get(value, BOTH) if isinstance(value, str) else BOTH
    return YES if good else NO


def meets(word: str, wanted: Any, value: Any, combine: Any) -> Possible:
    is_command = word == "argv" and isinstance(value, list)
    is_command = is_command and all(isinstance(each, str) for each in value)
    whole = word in ("max_length", "mentions_host") or is_command
    if whole or not isinstance(value, list):
        return one(word, wanted, value)
    as_list = one(word, wanted, value) if word in ("equals", "one_of") else NO
    if not value:
        return as_list
    parts = [meets(word, wanted, each, combine) for each in value]
    return each_way([as_list, each_way(parts, combine)], any)


def met(condition: dict[str, Any], value: Any, combine: Any) -> Possible:
    parts = [meets(word, wanted, value, combine) for word, wanted in condition.items()]
    return each_way(parts, all)


def holds_at(
    path: list[str], condition: dict[str, Any], here: Any, combine: Any
) -> Possible:
    if not path:
        return met(condition, here, combine)
    absent = BOTH if met(condition, None, combine) == YES else NO
    if here is None or here == []:
        return absent
    if isinstance(here, list):
        if path[0] == "0":
            return BOTH
        return each_way(
            (holds_at(path, condition, each, combine) for each in here), combine
        )
    if not isinstance(here, dict):
        return BOTH
    dotted = {".".join(path[:2]), ".".join(path[:3])} if len(path) > 1 else set()
    if dotted & here.keys():
        return BOTH
    if path[0] not in here:
        return absent
    return holds_at(path[1:], condition, here[path[0]], combine)


def rule_holds(
    kind: str, path: list[str], condition: dict[str, Any], arguments: Any
) -> bool:
    possible = holds_at(path, condition, arguments, all if kind == "allow" else any)
    return possible == YES if kind == "allow" else True in possible


def written(path: list[str]) -> str:
    plain = re.compile(r"[a-z0-9é]+")
    return ".".join(
        name if plain.fullmatch(name) else json.dumps(name) for name in path
    )


def guard_with(kind: str, when: dict[str, Any]) -> ActionGuard:
    rules: dict[str, Any] = {kind: [{"tools": ["t"], "when": when}]}
    if kind != "allow":
        rules["allow"] = ["t"]
    return ActionGuard([AgentPolicy(agent_id="a", **rules)])


async def rule_was_met(guard: ActionGuard, arguments: dict[str, Any]) -> bool:
    decision = await guard.decide(call("t", **arguments), FREE)
    return next(tried.met for tried in decision.tried)


OPEN = JSONSchemaTool(
    lambda arguments: arguments,
    name="t",
    parameters={"type": "object", "properties": {}},
)


@pytest.mark.promise("A17", "A18")
@settings(max_examples=700, derandomize=True)
@given(st.sampled_from(["allow", "ask", "deny"]), paths, conditions, objects)
def test_a_rule_holds_as_the_oracle_says(
    kind: str, path: list[str], condition: dict[str, Any], arguments: dict[str, Any]
) -> None:
    guard = guard_with(kind, {written(path): condition})
    judged = OPEN.validate(arguments).json

    said = run_apart(rule_was_met, guard, judged)

    assert said is rule_holds(kind, path, condition, judged)


@pytest.mark.promise("A17", "A18")
@settings(max_examples=200, derandomize=True)
@given(st.sampled_from(["allow", "ask", "deny"]), paths, paths, conditions, objects)
def test_all_conditions_of_a_rule_count(
    kind: str,
    path: list[str],
    other: list[str],
    condition: dict[str, Any],
    arguments: dict[str, Any],
) -> None:
    when = {written(path): condition, written(other): {"max_length": 1}}
    if len(when) == 1:
        return
    judged = OPEN.validate(arguments).json

    said = run_apart(rule_was_met, guard_with(kind, when), judged)

    assert said is all(
        rule_holds(kind, at, wanted, judged)
        for at, wanted in ((path, condition), (other, {"max_length": 1}))
    )


class Target(BaseModel):
    path: str = "/etc/x"
    mode: str | int | None = None


class Edit(BaseModel):
    to: Annotated[Target, Field(alias="from", default_factory=Target)]
    count: int = 1


targets = st.fixed_dictionaries(
    {},
    optional={
        "path": st.sampled_from(["/data/x", "/etc/x", "/data/../x"]),
        "mode": st.sampled_from(["w", "1", 1, None]),
    },
)
edits = st.fixed_dictionaries(
    {}, optional={"from": targets, "count": st.sampled_from([0, 1, 7])}
)
calls = st.fixed_dictionaries(
    {},
    optional={
        "edits": edits | st.lists(edits, max_size=3),
        "recursive": st.booleans(),
        "a.b": st.sampled_from(["/data/x", "/etc/x"]),
    },
)
TYPED: list[tuple[str, dict[str, Any]]] = [
    ("edits.from.path", {"under": "/data"}),
    ("edits.from.mode", {"equals": 1}),
    ("edits.from.mode", {"one_of": ["w", None]}),
    ("edits.count", {"min": 1}),
    ("recursive", {"equals": True}),
    ('"a.b"', {"under": "/data"}),
]


def typed_tool(received: list[dict[str, Any]]) -> Tool:
    @tool(name="t")
    def typed(
        edits: Edit | list[Edit] = Edit.model_validate({}),  # noqa: B008
        recursive: bool = True,
        dotted: Annotated[str, Field(alias="a.b")] = "/etc/x",
    ) -> str:
        """Take what a rule looks at."""
        many = edits if isinstance(edits, list) else [edits]
        received.append(
            {
                "edits.from.path": [each.to.path for each in many],
                "edits.from.mode": [each.to.mode for each in many],
                "edits.count": [each.count for each in many],
                "recursive": [recursive],
                '"a.b"': [dotted],
            }
        )
        return "done"

    return typed


@pytest.mark.promise("A17", "A18")
@settings(max_examples=150, derandomize=True)
@given(st.sampled_from(["allow", "deny"]), st.sampled_from(TYPED), calls)
def test_what_a_tool_gets_is_what_its_rules_have_judged(
    kind: str, rule: tuple[str, dict[str, Any]], arguments: dict[str, Any]
) -> None:
    path, condition = rule
    received: list[dict[str, Any]] = []
    asked = [ToolCall(id="1", name="t", arguments=arguments, agent_id="a")]

    async def runs(guard: ActionGuard | None) -> bool:
        registry = ToolRegistry([typed_tool(received)])
        executor = ConcurrentExecutor(registry, guard=guard)
        [result] = await executor.execute(asked)
        return result.ok

    ran = run_apart(runs, guard_with(kind, {path: condition}))
    assert run_apart(runs, None)

    got = received[-1][path]
    combine = all if kind == "allow" else any
    possible = each_way((met(condition, each, combine) for each in got), combine)
    if not got:
        possible = BOTH if met(condition, None, combine) == YES else NO
    holds = possible == YES if kind == "allow" else True in possible
    assert ran is (holds if kind == "allow" else not holds)


@pytest.mark.promise("A17")
@pytest.mark.parametrize(
    "path",
    """ |a..b|.a|a.|a"b"|"a|"a".|a.*|*.a|a[0]|a b|/a|a\\.b|"\\x"|a\n""".split("|"),
)
def test_a_path_that_reads_two_ways_is_no_path(path: str) -> None:
    with pytest.raises(PolicyError, match=r"path|JSON string"):
        guard_with("deny", {path: {"equals": 1}})


@pytest.mark.promise("A17")
@pytest.mark.anyio
async def test_a_default_that_a_schema_declares_is_judged_and_handed_over() -> None:
    def delete(path: str, recursive: bool = True) -> bool:
        return recursive

    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    flag = {"recursive": {"type": "boolean", "default": True}}
    own = {**schema, "properties": {**schema["properties"], **flag}}  # type: ignore[dict-item]
    named = {**schema["properties"], "recursive": {"type": "boolean"}}  # type: ignore[dict-item]
    foreign = JSONSchemaTool(lambda arguments: arguments, name="t", parameters=own)
    signed = tool(
        name="t",
        parameters={"type": "object", "properties": named, "required": ["path"]},
    )(delete)

    guard = guard_with("deny", {"recursive": {"equals": True}})
    for subject in (foreign, signed):
        executor = ConcurrentExecutor(ToolRegistry([subject]), guard=guard)
        for recursive, ok in (({}, False), ({"recursive": False}, True)):
            arguments: Any = {"path": "x", **recursive}
            [result] = await executor.execute([call("t", **arguments)])
            assert result.ok is ok, (subject, arguments)
