"""Ten ways round a rule that denies a text, and which of them each condition closes.

The table of docs/guard.md says the same in words.
"""

from __future__ import annotations

import logging
import sys
import unicodedata
from typing import Any

import pytest

from toolcell.core import PolicyError
from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.guard.policy.readings import MAX_TEXT, visible
from toolcell.guard.spi import Condition, policy_remarks

from ...support.guard.builders import FREE, call

pytestmark = pytest.mark.anyio

WAYS = {
    "more lines": "cd /\nrm -rf café\n",
    "another line end": "cd /\r\u2028rm -rf café",
    "form": unicodedata.normalize("NFD", "rm -rf café"),
    "full width": "ｒｍ　－ｒｆ café",
    "width zero": "r\u200bm -\u2060rf ca\u00adf\ufe0fé",
    "control characters": "r\0m -\x1b\x07rf café",
    "tabs and spaces": "rm\t -rf\u00a0  café",
    "quotes": "r''m \"-rf\" 'ca'fé",
    "backslashes": "r\\m -r\\\nf caf\\é",
    "field separators": "rm${IFS}-rf$IFS$9café",
}
OPEN = {
    "a variable": "x=rf; rm -$x café",
    "an encoding": "echo cm0gLXJmIGNhZsOp | base64 -d | sh",
    "a file": "sh ./written-before",
    "a pattern of the shell": "rm -rf caf?",
    "other options": "rm -r -f café",
    "a letter that looks alike": "rm -rf саfé",
}
DENIED: list[dict[str, Any]] = [
    {"contains": "RM -rf café"},
    {"contains": ["nothing", "rm -rf café"]},
    {"contains_word": "rm -rf café"},
    {"matches": ".*rm -rf café.*"},
    {"matches": "(?i).*RM -rf café.*"},
]


def denying(condition: dict[str, Any]) -> ActionGuard:
    rule = {"tools": ["run"], "when": {"code": condition}}
    return ActionGuard([AgentPolicy(agent_id="a", allow=["run"], deny=[rule])])


@pytest.mark.promise("R46")
@pytest.mark.parametrize("condition", DENIED, ids=str)
@pytest.mark.parametrize("way", WAYS)
async def test_a_way_round_a_denied_text_is_denied(
    way: str, condition: dict[str, Any]
) -> None:
    guard = denying(condition)

    assert not (await guard.decide(call("run", code=WAYS[way]), FREE)).allowed
    assert not (await guard.decide(call("run", code=["ls", WAYS[way]]), FREE)).allowed
    assert (await guard.decide(call("run", code="echo café"), FREE)).allowed


@pytest.mark.promise("R71")
@pytest.mark.parametrize("way", OPEN)
async def test_what_no_rule_on_texts_can_hold_is_documented_as_open(way: str) -> None:
    for condition in DENIED:
        asked = call("run", code=OPEN[way])
        assert (await denying(condition).decide(asked, FREE)).allowed, condition


@pytest.mark.promise("R46")
async def test_another_reading_never_allows() -> None:
    for condition in DENIED:
        rule = {"tools": ["run"], "when": {"code": condition}}
        guard = ActionGuard([AgentPolicy(agent_id="a", allow=[rule])])
        for way, text in WAYS.items():
            allowed = (await guard.decide(call("run", code=text), FREE)).allowed
            plain = unicodedata.normalize("NFC", text)
            assert not allowed or "rm -rf café" in plain, (condition, way)
        said = call("run", code="rm -rf café")
        assert (await guard.decide(said, FREE)).allowed


@pytest.mark.parametrize(
    ("condition", "yes", "no"),
    [
        ({"contains": "RM"}, ["farm", "ｒｍ", ["ls", "rm"], {"a": ["rm"]}], ["ls", {}]),
        ({"contains_word": "rm"}, ["/bin/rm", "a;RM", ["x rm"]], ["farm", "rm_", []]),
        ({"contains": "rm -rf"}, [["rm", "-rf"], {"rm -rf": 1}], [["rm", "x", "-rf"]]),
        ({"contains": " rm "}, ["a rm b"], ["rm", "farm b"]),
        ({"contains": "'"}, ["it's"], ["its"]),
        ({"contains": "x"}, [5, None, "x" * MAX_TEXT, "y" * (MAX_TEXT + 1)], ["y"]),
        ({"equals": "prod"}, ["prod", "PROD", " prod", "ｐrod"], ["pro", "production"]),
        ({"one_of": ["a", "b"]}, ["b", "B\u200b", ["c", "A"]], ["c", ["c"]]),
    ],
    ids=str,
)
async def test_a_denied_text_is_found(
    condition: dict[str, Any], yes: list[Any], no: list[Any]
) -> None:
    guard = denying(condition)
    for value in yes:
        assert not (await guard.decide(call("run", code=value), FREE)).allowed, value
    for value in no:
        assert (await guard.decide(call("run", code=value), FREE)).allowed, value


@pytest.mark.parametrize("wanted", ["", [], "\u200b", "x" * 201, ["x"] * 101, [1]])
def test_a_text_to_look_for_says_something(wanted: Any) -> None:
    with pytest.raises(PolicyError, match="contains"):
        Condition(contains=wanted)


@pytest.mark.promise("R46")
def test_a_rule_that_is_stepped_around_is_remarked_upon(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def policy(kind: str, **condition: Any) -> AgentPolicy:
        rule = {"tools": ["run"], "when": {"code": condition}}
        return AgentPolicy(agent_id="a", **{kind: [rule]})

    for pattern, text in {
        **{".*rm -rf.*": "rm -rf", "(?i).*drop table.*": "drop table"},
        **{"^git push.*$": "git push", ".*secret": "secret"},
    }.items():
        [remark] = policy_remarks([policy("deny", matches=pattern)])
        assert f"contains = {text!r}" in remark
        assert remark.startswith("a.deny[0].when.code: ")
    assert policy_remarks([policy("ask", argv=[["ls"]])])
    for fine in ({"contains": ".*"}, {"matches": "[a-z]+"}):
        assert not policy_remarks([policy("deny", **fine)])
    assert not policy_remarks([policy("allow", matches="git .*", argv=[["ls"]])])

    with caplog.at_level(logging.WARNING, "toolcell.guard"):
        ActionGuard([policy("deny", matches=".*x.*")])
    assert "contains = 'x'" in caplog.text


def test_no_character_that_people_do_not_see_is_left() -> None:
    unseen = [
        chr(code)
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)) in ("Cc", "Cf") and not chr(code).isspace()
    ]

    assert [each for each in unseen if visible(f"a{each}b") != "ab"] == []
