"""A request full of secrets, or edited all over, is shown in linear time."""

from __future__ import annotations

import time

import pytest

from toolcell.core import ToolCall
from toolcell.guard import ApprovalRequest, ShownRequest
from toolcell.host.console.pages.differences import Change, differences
from toolcell.host.console.pages.shown import cut

pytestmark = pytest.mark.promise("R1")


@pytest.mark.promise("R3")
def test_each_hidden_part_is_marked_and_many_cost_little() -> None:
    text = "\n".join(f"token=secret-{number:08}" for number in range(5_000))
    names = {f"token=secret-{number}": "x" for number in range(4_000)}

    request = ApprovalRequest(
        id="i",
        call=ToolCall(id="c", name="f", arguments={"text": text, **names}),
        run_id=None,
        version="",
        definition_hash="",
        tags=frozenset(),
        rule="",
        asked_at=0,
        expires_at=0,
    )

    start = time.thread_time()
    shown = ShownRequest(request)
    marks = frozenset(map(str, shown.hidden))
    pieces = cut(str(shown.arguments["text"]), marks)
    seconds = time.thread_time() - start

    assert sum(marked for _, marked in pieces) == 5_000
    assert "".join(piece for piece, _ in pieces) == shown.arguments["text"]
    assert len(shown.arguments) == 4_001
    assert seconds < 2


def test_a_mark_that_the_agent_wrote_itself_is_none() -> None:
    assert cut("a [hidden: 5 characters] b", frozenset()) == [
        ("a [hidden: 5 characters] b", False)
    ]


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (
            [1, 2],
            [1, 3],
            [
                Change(2, '   "x": [\n     1,', '   "x": [\n     1,', True),
                Change(4, "-    2", "+    3", False),
                Change(5, "   ]\n }", "   ]\n }", False),
            ],
        ),
        (
            list(range(8_000)),
            [0, 5, *range(2, 8_000)],
            [Change(4, "-    1,", "+    5,", True)],
        ),
        (
            list(range(8_000)),
            [*range(8_000), 0],
            [Change(8_002, "-    7999", "+    7999,\n+    0", True)],
        ),
        (list(range(8_000)), list(range(8_000)), []),
    ],
    ids=["few", "many", "one more", "none"],
)
def test_a_difference_is_shown(
    before: list[int], after: list[int], shown: list[Change]
) -> None:
    assert differences({"x": before}, {"x": after}) == shown


def test_each_group_of_changes_begins_with_its_line() -> None:
    before = list(range(30))
    found = differences({"x": before}, {"x": [-1, *before[1:20], -1, *before[21:]]})

    assert [each.line for each in found if each.begins] == [1, 21]
    assert len(found) == 6


def test_a_difference_of_all_lines_costs_little() -> None:
    start = time.thread_time()
    [found] = differences({"x": [0, 1] * 20_000}, {"x": [1, 1, 0] * 10_000})

    assert found.line == 3
    assert time.thread_time() - start < 2
