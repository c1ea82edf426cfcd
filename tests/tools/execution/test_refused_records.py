"""Records of refused calls are small, whatever was asked."""

from __future__ import annotations

import json

import pytest
from pydantic import JsonValue

from toolcell.core import ToolCall
from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.tools import ConcurrentExecutor, ToolRegistry, tool
from toolcell.tools.execution.attempt import LEFT_OUT, REFUSED_BYTES

pytestmark = pytest.mark.anyio
MANY: dict[str, JsonValue] = {f"a{number}": "x" * 4_000 for number in range(250)}
ONE: dict[str, JsonValue] = {"path": "/etc", "data": ["é" * 4_000] * 250}


@tool
def write(path: str, data: list[str]) -> str:
    return path


@pytest.mark.promise("R56")
@pytest.mark.parametrize("arguments", [MANY, ONE])
@pytest.mark.parametrize("name", ["write", "no_such_tool"])
async def test_what_refused_calls_store_is_bounded(
    name: str, arguments: dict[str, JsonValue]
) -> None:
    guard = ActionGuard([AgentPolicy(agent_id="a", deny=["*"])])
    made = ConcurrentExecutor(ToolRegistry([write]), guard=guard)
    call = ToolCall(id="1", name=name, arguments=arguments, agent_id="a")
    assert not (await made.call(call)).ok

    [record] = made.records.all_records()
    assert len(json.dumps(record, default=str)) < 4 * REFUSED_BYTES
    assert "bytes, sha256 " in str(record.arguments[LEFT_OUT])
    if arguments is ONE:
        assert record.arguments["path"] == "/etc"


async def test_more_is_stored_of_what_ran_and_all_of_what_is_small() -> None:
    made = ConcurrentExecutor(ToolRegistry([write]), guard=None)
    small: dict[str, JsonValue] = {"path": "/etc", "other": 1}
    for arguments in (ONE, small):
        await made.call(ToolCall(id="1", name="write", arguments=arguments))

    ran, other = [record.arguments for record in made.records.all_records()]
    assert other == small
    assert ran["path"] == "/etc"
    assert len(json.dumps(ran, ensure_ascii=False)) > 10 * REFUSED_BYTES
