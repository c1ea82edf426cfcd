"""A store of records that fails stops calls before their effect, and hides none."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from toolcell.core import GuardDeniedError, StoreUnavailableError, ToolCall
from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.tools import ConcurrentExecutor, SQLiteRecords, ToolRegistry, tool

pytestmark = pytest.mark.anyio


@pytest.mark.promise("C7")
async def test_calls_stop_before_their_effect_until_records_are_written(
    tmp_path: Path,
) -> None:
    effects: list[int] = []

    @tool
    def pay(amount: int) -> int:
        effects.append(amount)
        return amount

    path = tmp_path / "records.db"
    records = SQLiteRecords(path)
    executor = ConcurrentExecutor(ToolRegistry([pay]), guard=None, records=records)

    async def call(amount: int) -> str:
        made = ToolCall(id=f"pay-{amount}", name="pay", arguments={"amount": amount})
        return (await executor.call(made)).status

    assert await call(1) == "ok"
    with closing(sqlite3.connect(path)) as other:
        other.execute(
            "CREATE TRIGGER damaged BEFORE INSERT ON tool_records"
            " BEGIN SELECT RAISE(ABORT, 'database disk image is malformed'); END"
        )
        # Its effect is made when the store is found to fail: it is told as it was.
        assert [await call(amount) for amount in (2, 3, 4)] == ["ok", "error", "error"]
        with pytest.raises(StoreUnavailableError):
            executor.check_records()
        with pytest.raises(StoreUnavailableError):
            async with executor.operation("act", {}, agent_id="a"):
                effects.append(0)
        other.execute("DROP TRIGGER damaged")

    # The ids of calls that were not made are free.
    assert [await call(amount) for amount in (3, 4)] == ["ok", "ok"]
    assert effects == [1, 2, 3, 4]
    executor.check_records()
    ended = [(record.call_id, record.status) for record in records.query()]
    paid = [call_id for call_id, status in ended if status == "ok" and "pay" in call_id]
    assert paid == ["pay-1", "pay-2", "pay-3", "pay-4"]
    records.close()


@pytest.mark.promise("C8")
async def test_a_refusal_stays_one_if_its_record_has_to_wait(tmp_path: Path) -> None:
    """Nothing began, so nobody has to look whether something took effect."""

    @tool
    def pay() -> None:
        raise AssertionError

    path = tmp_path / "records.db"
    records = SQLiteRecords(path, busy_seconds=0.01)
    guard = ActionGuard([AgentPolicy(agent_id="a", allow=[])])
    executor = ConcurrentExecutor(ToolRegistry([pay]), guard=guard, records=records)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        made = ToolCall(id="1", name="pay", arguments={}, agent_id="a")
        with pytest.raises(GuardDeniedError):
            await executor.call(made, raise_on_error=True)
        other.execute("ROLLBACK")
    executor.check_records()
    assert [record.status for record in records.query()] == ["denied"]
    records.close()
