"""`calculate`, `get_today_date` and `query_sqlite`."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from toolcell.core import ConfigError, ToolCall, ToolResult
from toolcell.tools import ConcurrentExecutor, Tool, ToolRegistry
from toolcell.tools.builtin import calculate, get_today_date, query_sqlite_tool

pytestmark = pytest.mark.anyio


async def run(made: Tool, clock: Any = None, **arguments: Any) -> ToolResult:
    executor = ConcurrentExecutor(ToolRegistry([made]), guard=None, clock=clock)
    return await executor.call(ToolCall(id="1", name=made.name, arguments=arguments))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("-(2 ** 10) % 7", -(2**10) % 7),
        ("7 // 2 + 7 / 2", 6.5),
        ("2 ** -1", 0.5),
        (" sqrt(2) * cos(pi) ", math.sqrt(2) * math.cos(math.pi)),
        ("round(2.345, 2)", 2.35),
        ("max(1, 2, min(5, 4))", 4),
        ("10 ** 100", 10**100),
        ("1e3 + 0x10", 1016.0),
    ],
)
async def test_arithmetic_is_pythons(expression: str, value: float) -> None:
    result = await run(calculate, expression=expression)

    assert result.content == pytest.approx(value)
    assert type(result.content) is type(value)


@pytest.mark.promise("E-1", "E-5", "E-12", "E-13", "GA-24", "OR-23")
@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "().__class__.__base__.__subclasses__()",
        "[x for x in (1,)]",
        "(lambda: 1)()",
        "f'{1}'",
        "'a' * 3",
        "1 if 1 else 2",
        "sqrt.__self__",
        "abs(*[1])",
        "round(number=1)",
        "9 ** 9 ** 9",
        "10 ** 10 ** 8",
        "round(5, -10 ** 9)",
        "2 ** 4096 * 2",
        "1e308 * 10",
        "(-1) ** 0.5",
        "1 / 0",
        "0 ** -1",
        "True + 1",
        "1j",
        "a := 1",
        "1; 2",
        "",
        "(" * 400 + "1" + ")" * 400,
        "-" * 900 + "1",
        "1 + " * 400 + "1",
        "1" * 1001,
        "\0",
        "@",
    ],
    ids=lambda text: text[:24].replace("\0", "NUL"),
)
async def test_nothing_but_bounded_arithmetic(expression: str) -> None:
    result = await run(calculate, expression=expression)

    assert result.status == "error"
    assert result.error is not None
    assert result.error.kind == "tool", "told on purpose, not a crash"


@pytest.mark.promise("LT-53")
async def test_today_comes_from_the_context() -> None:
    def late() -> datetime:
        return datetime(2026, 2, 28, 23, 30, tzinfo=UTC)

    result = await run(get_today_date, late)
    assert result.content == {
        "today": "2026-02-28",
        "weekday": "Saturday",
        "year": 2026,
        "tomorrow": "2026-03-01",
        "day_after_tomorrow": "2026-03-02",
        "next_7_days_by_weekday": {
            "sunday": "2026-03-01",
            "monday": "2026-03-02",
            "tuesday": "2026-03-03",
            "wednesday": "2026-03-04",
            "thursday": "2026-03-05",
            "friday": "2026-03-06",
            "saturday": "2026-03-07",
        },
        "one_week_from_now": "2026-03-07",
        "two_weeks_from_now": "2026-03-14",
    }
    tokyo = await run(get_today_date, lambda: late().astimezone(ZoneInfo("Asia/Tokyo")))
    content: Any = tokyo.content
    assert content["today"] == "2026-03-01"


@pytest.mark.promise("LT-53")
async def test_after_midnight_it_is_another_day() -> None:
    days = iter([28, 28, 1, 1, 1, 1])
    months = iter([2, 2, 3, 3, 3, 3])

    def clock() -> datetime:
        return datetime(2026, next(months), next(days), tzinfo=UTC)

    executor = ConcurrentExecutor(
        ToolRegistry([get_today_date]), guard=None, clock=clock
    )
    found = [
        await executor.call(ToolCall(id=str(number), name="get_today_date"))
        for number in range(2)
    ]

    assert [str(each.content)[11:21] for each in found] == ["2026-02-28", "2026-03-01"]


def query(database: Path, **options: Any) -> Tool:
    """Return the tool, with time for a process to start on a slow machine."""
    return query_sqlite_tool(database, **{"timeout_seconds": 60, **options})


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop's #1.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE items (name TEXT, price REAL, image BLOB)")
        rows = [(f"item {n}", n / 2, b"\xff\0") for n in range(50)]
        connection.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
    connection.close()
    return path


async def test_a_query_returns_columns_and_rows(database: Path) -> None:
    made = query(database)
    sql = "SELECT name, price, image FROM items WHERE price > ? ORDER BY price LIMIT 1"
    result = await run(made, sql=sql, parameters=[3.2])

    assert result.content == {
        "columns": ["name", "price", "image"],
        "rows": [["item 7", 3.5, "[2 bytes]"]],
        "more": False,
    }


async def test_rows_are_bounded(database: Path) -> None:
    few = await run(query(database, max_rows=3), sql="SELECT * FROM items")
    small = query(database, max_bytes=100)
    short = await run(small, sql="SELECT name FROM items")
    contents: list[Any] = [few.content, short.content]

    assert [len(content["rows"]) for content in contents] == [3, 10]
    assert [content["more"] for content in contents] == [True, True]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM items",
        "DROP TABLE items",
        "INSERT INTO items VALUES ('x', 1, NULL)",
        "CREATE TABLE t (x)",
        "CREATE TEMP TABLE t (x)",
        "PRAGMA writable_schema = 1",
        "PRAGMA journal_mode = DELETE",
        "ATTACH DATABASE '/tmp/stolen.db' AS other",
        "VACUUM INTO '/tmp/stolen.db'",
        "BEGIN IMMEDIATE",
        "SELECT load_extension('/tmp/evil.so')",
        "SELECT 1; DELETE FROM items",
        "SELECT zeroblob(1000000000)",
        "SELECT nothing FROM nowhere",
        "",
        "not sql \0",
    ],
)
async def test_what_is_no_query_is_refused_and_changes_nothing(
    database: Path, sql: str
) -> None:
    before = database.read_bytes()
    result = await run(query(database), sql=sql)

    assert result.status == "error" or result.content == {
        "columns": [],
        "rows": [],
        "more": False,
    }
    assert database.read_bytes() == before
    assert [path.name for path in database.parent.iterdir()] == [database.name]
    assert str(database.parent) not in result.to_text()


@pytest.mark.promise("E-46", "E-53")
async def test_a_query_that_eats_the_machine_is_killed(database: Path) -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
    slow = await run(
        query(database, timeout_seconds=0.5),
        sql=f"{endless} SELECT count(*) FROM n",
    )
    hungry = await run(
        query(database, memory_mib=64),
        sql=f"{endless} SELECT randomblob(900000) FROM n ORDER BY 1",
    )

    assert slow.status == "timeout"
    assert hungry.status == "error"


def test_a_database_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no database"):
        query_sqlite_tool(tmp_path / "none.db")
    with pytest.raises(ConfigError):
        query_sqlite_tool(__file__, max_rows=0)
