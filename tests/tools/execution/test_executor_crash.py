"""A process that is killed in the middle of calls, and the one that comes after."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from toolcell.core import ToolCall
from toolcell.tools import (
    ConcurrentExecutor,
    SQLiteIdempotency,
    SQLiteRecords,
    ToolRegistry,
    tool,
)

from ...support.child import Child

pytestmark = pytest.mark.anyio

VICTIM = """
import sys, anyio
from pathlib import Path
from toolcell.core import ToolCall
from toolcell.tools import *
folder = Path(sys.argv[1])

@tool
async def pay(amount: int) -> str:
    with (folder / "paid").open("a") as file:
        file.write(f"{amount} ")
    if amount == 2:
        print("half-way", flush=True)
        await anyio.sleep_forever()
    return f"paid {amount}"

async def main():
    executor = ConcurrentExecutor(
        ToolRegistry([pay]), guard=None, records=SQLiteRecords(folder / "state.db"),
        idempotency=SQLiteIdempotency(folder / "state.db"))
    await executor.call(ToolCall(id="a", name="pay", arguments={"amount": 1}))
    await executor.execute([
        ToolCall(id="b", name="pay", arguments={"amount": 2}),
        ToolCall(id="c", name="pay", arguments={"amount": 3})])
anyio.run(main)
"""


@pytest.mark.promise("A-17", "RG-31")
@pytest.mark.promise("R70")
async def test_no_call_is_made_twice_across_a_kill(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-c", VICTIM, str(tmp_path)]
    with Child(command, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "half-way\n"
        victim.kill()
    before = (tmp_path / "paid").read_text()

    @tool
    async def pay(amount: int) -> str:
        with (tmp_path / "paid").open("a") as file:
            file.write(f"again {amount}")
        return "again"

    keys = SQLiteIdempotency(tmp_path / "state.db")
    records = SQLiteRecords(tmp_path / "state.db")
    executor = ConcurrentExecutor(
        ToolRegistry([pay]), guard=None, records=records, idempotency=keys
    )
    done = await executor.call(ToolCall(id="a", name="pay", arguments={"amount": 1}))
    half = await executor.call(ToolCall(id="b", name="pay", arguments={"amount": 2}))
    fresh = await executor.call(ToolCall(id="d", name="pay", arguments={"amount": 4}))

    assert done.content == "paid 1"
    assert half.error is not None
    assert half.error.details == {"outcome": "unknown"}
    assert fresh.content == "again"
    assert (tmp_path / "paid").read_text() == f"{before}again 4"
    told = [(r.call_id, r.status, r.replayed) for r in records.all_records()]
    assert told[0] == ("a", "ok", False)
    assert told[-3:] == [("a", "ok", True), ("b", "error", False), ("d", "ok", False)]
    keys.close()
    records.close()


WAITS = """
import sys, anyio
from pathlib import Path
from toolcell.core import ToolCall
from toolcell.guard import *
from toolcell.tools import *

@tool
async def pay(amount: int) -> str:
    raise AssertionError

async def ask(request):
    print("asked", flush=True)
    await anyio.sleep_forever()

async def main():
    policy = AgentPolicy(agent_id="a", ask=["pay"])
    guard = ActionGuard([policy], approvals=Approvals(handler=ask))
    keys = SQLiteIdempotency(Path(sys.argv[1]) / "state.db")
    executor = ConcurrentExecutor(ToolRegistry([pay]), guard=guard, idempotency=keys)
    await executor.call(
        ToolCall(id="1", name="pay", arguments={"amount": 1}, agent_id="a"))
anyio.run(main)
"""


@pytest.mark.promise("C9")
async def test_a_call_that_waited_for_a_person_is_made_after_a_kill(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-I", "-c", WAITS, str(tmp_path)]
    with Child(command, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "asked\n"
        victim.kill()

    @tool
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    keys = SQLiteIdempotency(tmp_path / "state.db")
    executor = ConcurrentExecutor(ToolRegistry([pay]), guard=None, idempotency=keys)
    call = ToolCall(id="1", name="pay", arguments={"amount": 1}, agent_id="a")
    assert (await executor.call(call)).content == "paid 1"
    assert (await executor.call(call)).content == "paid 1"
