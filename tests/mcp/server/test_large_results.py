"""The check of a large result leaves room for the small calls of others."""

from __future__ import annotations

import pytest

from toolcell.host.mcp import results
from toolcell.host.mcp.results import ToolDefinitions
from toolcell.tools import Tool, tool


@tool
def numbers() -> list[int]:
    "Return numbers."
    return []


@tool
def names() -> dict[str, int]:
    "Return numbers by name."
    return {}


@pytest.mark.promise("R2")
@pytest.mark.parametrize("declared", [numbers, names])
def test_the_check_rests_at_each_value(
    monkeypatch: pytest.MonkeyPatch, declared: Tool
) -> None:
    rests: list[None] = []
    monkeypatch.setattr(results, "rest", lambda: rests.append(None))
    many = {str(number): number for number in range(1_000)}
    content = list(many.values()) if declared is numbers else many

    ToolDefinitions().structured(declared, content)

    assert len(rests) >= 1_000
