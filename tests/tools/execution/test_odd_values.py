"""Values that tools return, and that JSON cannot carry as they are."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import Base64Bytes, Base64Str

from toolcell.core import ConfigError, ToolCall
from toolcell.tools import ConcurrentExecutor, ToolRegistry, tool

pytestmark = pytest.mark.anyio


async def called(function: Any, **arguments: Any) -> Any:
    made = tool(function)
    executor = ConcurrentExecutor(ToolRegistry([made]), guard=None)
    call = ToolCall(id="1", name=made.name, agent_id="a", arguments=arguments)
    return await executor.call(call, raise_on_error=False)


@pytest.mark.promise("T27")
@pytest.mark.parametrize("value", [math.nan, [math.inf], {"a": "\ud800"}])
async def test_what_is_not_json_is_the_tools_fault(value: Any) -> None:
    def odd() -> Any:
        return value

    error = (await called(odd)).error

    assert error.kind == "tool.execution"
    assert "odd returned what is not JSON" in error.message


@pytest.mark.promise("T28")
@pytest.mark.parametrize("data", [b"text", b"\xff\x00", b""])
async def test_bytes_are_base64_both_ways(data: bytes) -> None:
    def give() -> bytes:
        return data

    def take(given: bytes) -> bool:
        return given == data

    text = (await called(give)).content

    assert (await called(take, given=text)).content is True


@pytest.mark.promise("T28")
async def test_what_decodes_twice_is_refused_and_a_text_is_not() -> None:
    def take(given: Base64Bytes) -> int:
        return len(given)

    def take_text(given: Base64Str) -> str:
        return given

    with pytest.raises(ConfigError, match="base64 of base64"):
        ToolRegistry([tool(take)])
    assert (await called(take_text, given="aGk=")).content == "hi"
