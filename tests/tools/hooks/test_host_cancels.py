"""A hook ends a call from outside, and hears the output of its program."""

from __future__ import annotations

import anyio
import pytest
from pydantic import JsonValue

from toolcell.core import ToolCall
from toolcell.sandbox import SandboxManager
from toolcell.tools import (
    ConcurrentExecutor,
    Hook,
    RetryPolicy,
    RunContext,
    ToolRegistry,
    tool,
)
from toolcell.tools.builtin import code_tools
from toolcell.tools.spi import CallCancelledError, Invocation, Proceed

from ...conftest import BackendRow

pytestmark = pytest.mark.anyio


class Stop(Hook):
    """Cancels a call as soon as it is told to, and notes what it saw."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.output: list[tuple[str, bytes]] = []
        self.seen: list[Invocation] = []

    async def around(self, invocation: Invocation, proceed: Proceed) -> JsonValue:
        self.seen.append(invocation)
        invocation.on_output.append(lambda *each: self.output.append(each))
        with self.scope:
            return await proceed()
        raise CallCancelledError("ended by a person", hint="ask them")


@tool(idempotent=True, timeout=7)
async def forever() -> None:
    await anyio.sleep_forever()


async def test_a_call_that_a_hook_cancelled_is_a_result_and_not_tried_again() -> None:
    stop = Stop()
    calls = ConcurrentExecutor(
        ToolRegistry([forever]),
        guard=None,
        hooks=[stop],
        retries={"forever": RetryPolicy(max_attempts=3)},
    )
    stop.scope.cancel()
    run = RunContext(run_id="r", session="s")
    result = await calls.call(ToolCall(id="1", name="forever"), run=run)

    assert result.status == "cancelled"
    assert result.error is not None
    assert (result.error.kind, result.error.message) == (
        "tool.cancelled",
        "ended by a person",
    )
    [record] = calls.records.all_records()
    assert (record.status, record.attempt) == ("cancelled", 1)
    [seen] = stop.seen
    assert (seen.seconds, seen.run_id, seen.session) == (7, "r", "s")


async def test_a_hook_hears_the_output_of_a_program(backend: BackendRow) -> None:
    stop = Stop()
    async with SandboxManager(backend.config()) as sandbox:
        calls = ConcurrentExecutor(
            ToolRegistry(code_tools(sandbox)), guard=None, hooks=[stop]
        )
        code = "import sys\nprint('out')\nprint('err', file=sys.stderr)"
        call = ToolCall(id="1", name="run_python", arguments={"code": code})
        result = await calls.call(call)

    assert result.ok, result.error
    said = {
        name: b"".join(d for n, d in stop.output if n == name)
        for name, _ in stop.output
    }
    assert said == {"stdout": b"out\n", "stderr": b"err\n"}
