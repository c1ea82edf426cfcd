"""Sessions of code in threads: what a crash ended does not pretend to be there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolcell.flow import Flow, FlowResult, NodeContext, SQLiteCheckpointer, interrupt
from toolcell.flow.spi import resume_with
from toolcell.host import Host, HostConfig

from ..support.flow.graphs import Log, chain, said

pytestmark = pytest.mark.anyio


async def computes(state: Log, ctx: NodeContext) -> dict[str, Any]:
    async def run(code: str) -> str:
        result = await ctx.call("run_python", code=code)
        assert isinstance(result.content, dict), result
        return f"{result.content['value']} {result.content['variables']}"

    seen = [await run("x = 1; x"), await run("x += 1; x")]
    interrupt("go on?")
    seen += [await run("'x' in globals()"), await run("x = 3; x")]
    return said(*seen, await run("x"))


async def in_a_new_host(folder: Path, work: Any) -> FlowResult[Log]:
    """Return what came of a flow on a host that then ends, and its cells with it."""
    settings = {
        "sandbox": {"backend": "subprocess"},
        "tools": {"builtin": ["code"]},
        "policies": [{"agent_id": "a", "allow": ["run_python"]}],
    }
    async with (
        Host(HostConfig.model_validate(settings), environ={}) as host,
        SQLiteCheckpointer(folder / "t.db") as store,
    ):
        flow = Flow(
            chain(computes),
            checkpointer=store,
            executor=host.executor,
            agent_id="a",
            session="{thread}",
        )
        result: FlowResult[Log] = await work(flow)
        return result


@pytest.mark.promise("flow-46")
async def test_a_session_that_a_crash_ended_says_so_once(tmp_path: Path) -> None:
    """What was computed is replayed; what lived in the cell is told to be new."""
    paused = await in_a_new_host(tmp_path, lambda flow: flow.run({}, "t"))
    assert paused.status == "interrupted"
    done = await in_a_new_host(
        tmp_path, lambda flow: flow.resume("t", resume_with("yes"))
    )

    assert done.unwrap().log == ("1 new", "2 kept", "False new", "3 kept", "3 kept")
