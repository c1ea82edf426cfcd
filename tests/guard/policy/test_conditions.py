"""What conditions on arguments take, and what they leave.

Commands are judged as lists, paths and hosts by one reading only.
"""

from __future__ import annotations

from typing import Any

import pytest

from toolcell.core import PolicyError
from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.guard.spi import Condition

from ...support.corpora import records
from ...support.guard.builders import FREE, call, refusal

pytestmark = pytest.mark.anyio

PATHS_ELSEWHERE = [
    *"/data-b/x /data/../etc/passwd / data/a //data/a /data\\..\\x /DATA/x".split(),
    *("", 5, "/data/\0", "/data/\n/x"),
]
URLS = """
    https://example.com/a?b#c http://EXAMPLE.com.:80/ https://a.example.org
    https://api.test:8443/x http://[::1]/
""".split()
URLS_ELSEWHERE = [
    *"""
    https://example.org https://example.com.evil.net https://api.test/
    https://example.com:8443/ ftp://example.com //example.com example.com
    https://evil.net/example.com https://xexample.com https://user@example.com/
    https://example.com@evil.net/ https://example.com\\@evil.net/
    https://example.com%00.evil.net/ https:example.com https:/\\example.com
    https://exаmple.com/ https://example.com:x/ http://127.1/ http://2130706433/
    http://0x7f.0.0.1/ http://[::ffff:127.0.0.1]/ http:///x http://[::1
    """.split(),
    *("https://example.com\t/", " https://example.com", "", 5),
]
COMMANDS_ELSEWHERE: list[Any] = [
    *map(
        str.split,
        """cat -n -c|cat -n --output=x|git|ls /|GIT status|git status ; id
        |/tmp/git status""".split("|"),
    ),
    *("git status", ["cat", "-n", ""], ["cat", "-n", 1]),
]

CONDITIONS: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"equals": 1}, [1, 1.0, [1]], [True, "1", None, [1, 2], [], 2]),
    ({"equals": {"a": [1]}}, [{"a": [1]}], [{"a": [True]}, {"a": [1], "b": 1}]),
    ({"equals": None}, [None], [False, 0, ""]),
    ({"one_of": ["r", "w"]}, ["r"], ["rw", "", 0]),
    ({"min": 1, "max": 3}, [1, 2.5, 3], [0, 3.1, True, "2", None]),
    (
        {"matches": "[a-z]+"},
        ["abc", ["abc", ["d"]]],
        ["abc1", "ABC", "abc\n", "", 3, ["abc", ""], []],
    ),
    ({"matches": "a.*b"}, ["a\nb", "a\r\n\nb"], ["b\na"]),
    ({"matches": "a|b"}, ["a", "b"], ["ab", "xa", "bx"]),
    ({"max_length": 2}, ["ab", [1, 2], {}], ["abc", [1, 2, 3], 1]),
    (
        {"under": "/data"},
        ["/data", "/data/a/b", "/data//a", "/data/./a", "/data/..a"],
        PATHS_ELSEWHERE,
    ),
    ({"under": "."}, ["a", "a/b", "./a"], ["../a", "/a", "a/../../b", "~/../x"]),
    ({"under": "notes"}, ["notes/a"], ["notes2/a", "a", "/notes/a"]),
    (
        {"host_in": ["example.com", "*.example.org", "api.test:8443", "[::1]:80"]},
        URLS,
        URLS_ELSEWHERE,
    ),
    (
        {"argv": [["git", "status"], ["cat", "-n", "*"], ["ls"]]},
        [["git", "status"], ["cat", "-n", "notes"], ["ls"]],
        COMMANDS_ELSEWHERE,
    ),
]


def guard_with(**fields: Any) -> ActionGuard:
    return ActionGuard([AgentPolicy(agent_id="a", **fields)])


@pytest.mark.promise("E-68", "E-97")
@pytest.mark.parametrize(("condition", "yes", "no"), CONDITIONS)
async def test_conditions_judge_values(
    condition: dict[str, Any], yes: list[Any], no: list[Any]
) -> None:
    allowing = guard_with(allow=[{"tools": ["t"], "when": {"x": condition}}])
    for value in yes:
        assert (await allowing.decide(call("t", x=value), FREE)).allowed, value
    for value in no:
        assert not (await allowing.decide(call("t", x=value), FREE)).allowed, value
    assert not (await allowing.decide(call("t"), FREE)).allowed


async def test_what_cannot_be_judged_is_taken_against_the_caller() -> None:
    guard = guard_with(
        allow=["*"], deny=[{"tools": ["t"], "when": {"x": {"under": "/etc"}}}]
    )

    for value in ("/etc/passwd", "/srv/../etc/passwd", "etc/passwd", 5, ["/etc"]):
        assert (await refusal(guard, call("t", x=value)))["reason"] == "denied", value
    assert (await guard.decide(call("t", x="/srv/a"), FREE)).allowed
    assert (await guard.decide(call("t"), FREE)).allowed


@pytest.mark.promise("A17")
async def test_a_key_that_is_spelled_like_a_path_leads_no_rule_astray() -> None:
    inside = {"target.path": {"under": "/work"}}
    guard = guard_with(allow=[{"tools": ["write"], "when": inside}])
    deny = {"tools": ["delete"], "when": {"options.recursive": {"equals": True}}}
    careful = guard_with(allow=["*"], deny=[deny])
    target, options = {"path": "/etc/passwd"}, {"recursive": True}

    astray: Any
    for astray in ({"target": target, "target.path": "/work/a"}, {"target": target}):
        assert not (await guard.decide(call("write", **astray), FREE)).allowed
    for astray in ({"options": options, "options.recursive": False}, {"options": "x"}):
        assert not (await careful.decide(call("delete", **astray), FREE)).allowed
    good = call("write", target={"path": "/work/a"})
    assert (await guard.decide(good, FREE)).allowed
    assert (await careful.decide(call("delete", options={}), FREE)).allowed


@pytest.mark.promise("A17")
async def test_a_name_with_dots_is_reached_in_quotes() -> None:
    guard = guard_with(allow=[{"tools": ["t"], "when": {'"a.b".c': {"equals": "x"}}}])

    dotted: Any = {"a.b": {"c": "x"}}
    quoted = call("t", **dotted)
    assert (await guard.decide(quoted, FREE)).allowed
    nested = call("t", a={"b": {"c": "x"}})
    assert not (await guard.decide(nested, FREE)).allowed


@pytest.mark.promise("A18")
async def test_a_rule_for_one_edit_holds_for_a_list_of_them() -> None:
    etc = {"tools": ["edit"], "when": {"edit.path": {"under": "/etc"}}}
    guard = guard_with(allow=["edit"], deny=[etc])
    work = {"tools": ["edit"], "when": {"edit.path": {"under": "/work"}}}
    narrow = guard_with(allow=[work])
    good, bad = {"path": "/work/a"}, {"path": "/etc/passwd"}

    for edit in (bad, [bad], [good, bad], [good, [bad]], "/etc/passwd", [good, "x"]):
        asked = call("edit", edit=edit)
        assert not (await guard.decide(asked, FREE)).allowed, edit
        assert not (await narrow.decide(asked, FREE)).allowed, edit
    for edit in (good, [good], [good, good]):
        asked = call("edit", edit=edit)
        assert (await guard.decide(asked, FREE)).allowed, edit
        assert (await narrow.decide(asked, FREE)).allowed, edit
    assert (await guard.decide(call("edit", edit=[]), FREE)).allowed
    assert not (await narrow.decide(call("edit", edit=[]), FREE)).allowed


@pytest.mark.promise("E-110")
@pytest.mark.corpus
async def test_no_payload_passes_as_a_command_or_path() -> None:
    guard = guard_with(
        allow=[
            {"tools": ["sh"], "when": {"argv": {"argv": [["ls"], ["cat", "notes"]]}}},
            {"tools": ["open"], "when": {"path": {"under": "/work"}}},
        ]
    )
    for record in records("path_and_command_payloads/payloads.jsonl"):
        text = record["payload"]
        for argv in (text, text.split(), ["ls", text], ["cat", "notes", text]):
            decision = await guard.decide(call("sh", argv=argv), FREE)
            assert not decision.allowed or argv in (["ls"], ["cat", "notes"])
        path = f"/work/{text}"
        if (await guard.decide(call("open", path=path), FREE)).allowed:
            assert ".." not in path.split("/")
        assert not (await guard.decide(call("open", path=text), FREE)).allowed


@pytest.mark.promise("E-111", "R47")
@pytest.mark.parametrize(
    "command",
    [
        *map(
            str.split,
            """python *|python3.12 *|/usr/bin/python3 -c *|sh -c *|env *|xargs *|*|* x
            |sudo ls *|busybox *|sed * *|git log *|find * -exec *|tar xf *|rg --pre *
            |chroot * ls|npm *|m4 *|docker run *|sort --compress-program *|cat2 *
            """.split("|"),
        ),
    ],
)
def test_a_star_is_for_programs_that_run_nothing(command: list[str]) -> None:
    with pytest.raises(PolicyError, match="would run anything"):
        Condition(argv=[command])


@pytest.mark.promise("E-111")
async def test_a_star_is_no_option() -> None:
    commands = [["grep", "*", "notes"], ["/bin/cat", "*"]]
    guard = guard_with(allow=[{"tools": ["sh"], "when": {"argv": {"argv": commands}}}])
    for argv in (["grep", "-f", "notes"], ["/bin/cat", "--help"], ["cat", "a"]):
        assert not (await guard.decide(call("sh", argv=argv), FREE)).allowed, argv
    assert (await guard.decide(call("sh", argv=["/bin/cat", "a"]), FREE)).allowed
