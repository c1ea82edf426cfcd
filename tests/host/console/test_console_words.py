"""Pages speak the language of people: units, schemas as tables, the rule that asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolcell.host.console.pages.policies import argument_rows
from toolcell.host.console.web.templating import amount, size
from toolcell.host.console.web.visit import MAX_ARGUMENT_VALUES

from ...support.console.client import Client, signed_in
from ...support.console.served import Service, served


@pytest.mark.promise("D8")
@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (30_000, "cpu_ms", "30.0 s of CPU"),
        (90_000, "wall_ms", "1 min 30 s"),
        (2_097_152, "bytes", "2 MiB"),
        ("0.25", "usd", "0.25 USD"),
        (7, "tokens", "7 tokens"),
    ],
)
def test_amounts_are_written_as_people_do(value: Any, unit: str, words: str) -> None:
    assert amount(value, unit) == words


def test_sizes_have_the_unit_that_fits() -> None:
    assert [size(1_024**power) for power in range(5)] == [
        *("1 bytes", "1 KiB", "1 MiB", "1 GiB", "1.0 TiB")
    ]
    assert [size(1_000), size(1_023 * 1_024), size(1_234)] == [
        *("1000 bytes", "1023 KiB", "1.21 KiB")
    ]
    assert [size(count * 1_024) for count in (999.4, 999.5, 999.7)] == [
        *("999 KiB", "1000 KiB", "1000 KiB")
    ]


@pytest.mark.promise("D8")
def test_the_rule_that_asked_is_linked(service: Service, viewer: Client) -> None:
    request, _ = service.asked(to="a shop")
    shown = viewer.page(f"/approvals/{request.id}")
    links = {*viewer.links}
    service.deny(request)

    assert "builder.ask[0]" in shown.replace("\n", "")
    assert "/policies#policy-builder" in links
    assert "0.25 USD" in shown


@pytest.mark.promise("D11")
def test_a_tool_shows_its_arguments_as_a_table(viewer: Client) -> None:
    words = " ".join(viewer.page("/tools/pay").split())

    assert "to string required" in words
    assert "sum integer 1" in words


@pytest.mark.promise("D11")
@pytest.mark.parametrize(
    ("schema", "rows"),
    [
        ({}, []),
        ({"properties": 7, "required": "x"}, []),
        ({"properties": {"a": True}}, [("a", "any", False, "", "")]),
        (
            {
                "properties": {
                    "a": {"type": "array", "items": {"type": "string"}},
                    "b": {"anyOf": [{"type": "integer"}, {"type": "null"}, 7]},
                    "c": {"enum": ["x", 1], "description": "d", "default": "x"},
                    "d": {"type": ["string", "null"]},
                },
                "required": ["a"],
            },
            [
                ("a", "list of string", True, "", ""),
                ("b", "integer or null", False, "", ""),
                ("c", 'one of "x", 1', False, '"x"', "d"),
                ("d", "string or null", False, "", ""),
            ],
        ),
    ],
)
def test_any_schema_becomes_a_table(schema: dict[str, Any], rows: list[Any]) -> None:
    assert argument_rows(schema) == rows


def test_arguments_are_counted_before_they_are_read(service: Service) -> None:
    request, _ = service.asked(to="many")
    # What is counted is not parsed, so nothing notices that the text breaks off.
    many = '{"to": [' + "0," * MAX_ARGUMENT_VALUES
    with signed_in(service, "approver") as carl:
        for act in ("edit", "edited"):
            answer = carl.act(f"/approvals/{request.id}/{act}", 409, arguments=many)
            assert "more than 50,000 values" in answer.text
        asked = {"agent": "builder", "tool": "pay", "arguments": many}
        assert "more than 50,000 values" in carl.act("/explain", 409, **asked).text
        text = json.dumps({"to": "," * MAX_ARGUMENT_VALUES})
        carl.act(f"/approvals/{request.id}/edit", 200, arguments=text)
    service.deny(request)


def test_changes_are_shown_with_their_line(service: Service) -> None:
    request, _ = service.asked(to="a shop", sum=40)
    edited = json.dumps({"to": "a shop", "sum": 20})
    with signed_in(service, "approver") as carl:
        shown = carl.act(f"/approvals/{request.id}/edit", 200, arguments=edited).text
    service.deny(request)

    assert shown.count('<p class="faint">Line 1</p>') == shown.count(">Line ") == 1


@pytest.mark.promise("D10")
def test_an_empty_page_says_what_would_fill_it(tmp_path: Path) -> None:
    with served(tmp_path) as fresh, signed_in(fresh, "viewer") as viewer:
        pages = {path: viewer.page(path) for path in ("/", "/runs", "/sessions")}

    assert "toolcell policy check" in pages["/"]
    assert "toolcell call" in pages["/runs"]
    assert "calls a tool of the group code opens one" in pages["/sessions"]
