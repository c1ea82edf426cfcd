"""Result schemas: what clients check the values of a function by."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from toolcell.core import ConfigError
from toolcell.tools import FunctionTool, ToolRegistry, to_mcp

from ...support.mcp.served_hosts import client_of, served


class Meeting(BaseModel):
    format: str
    start: dt.datetime
    length: dt.timedelta


class Odd:
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        raise RuntimeError("no schema today")


RUST_LACKS = Annotated[str, Field(pattern=r"^(?!\d+$)[a-z-]+$")]


def returning(annotation: Any, name: str = "own_odd") -> FunctionTool[..., Any]:
    def function() -> Any:
        return "a"

    function.__annotations__ = {"return": annotation}
    return FunctionTool(function, name=name)


@pytest.mark.promise("T4")
@pytest.mark.parametrize(
    "annotation",
    [dt.datetime, dt.time, dt.timedelta, re.Pattern[str], Meeting, list[Meeting]],
)
def test_no_format_is_promised_that_values_of_python_lack(annotation: Any) -> None:
    shown = to_mcp(returning(annotation))["outputSchema"]

    assert '"format": "' not in json.dumps(shown)
    assert shown != {"type": "object"}


@pytest.mark.promise("T4")
def test_a_field_may_be_named_format() -> None:
    returns = returning(Meeting).returns

    assert returns is not None
    assert list(returns["properties"]) == ["format", "start", "length"]


@pytest.mark.promise("T3")
@pytest.mark.anyio
@pytest.mark.parametrize("annotation", [RUST_LACKS, Odd])
async def test_an_odd_result_leaves_the_list_of_tools_to_all(
    tmp_path: Path, annotation: Any
) -> None:
    odd = returning(annotation)
    async with served(tmp_path, odd) as server, client_of(server) as client:
        listed = (await client.list_tools()).tools

    assert "own_odd" in [each.name for each in listed]


@pytest.mark.promise("T3")
def test_a_pattern_that_cannot_be_checked_is_told_at_registration() -> None:
    def slug(text: Annotated[str, Field(pattern=r"^[a-z]+\Z")]) -> str:
        return text

    with pytest.raises(ConfigError, match=r"slug has a parameter .*escape"):
        ToolRegistry([slug])
