"""A process that runs one query for `query_sqlite` and ends; run by its path."""

from __future__ import annotations

import json
import resource
import sqlite3
import sys
from typing import Any
from urllib.parse import quote

_LONGEST_VALUE = 1_000_000
_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


def limit(memory_mib: int) -> None:
    """Bound what this process may use; there is no way back."""
    memory = memory_mib * 1_048_576
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _authorize(
    action: int, first: str | None, second: str | None, *_: str | None
) -> int:
    if action == sqlite3.SQLITE_FUNCTION and second == "load_extension":
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def query(asked: dict[str, Any]) -> dict[str, Any]:
    """Return columns and rows of a statement."""
    database = sqlite3.connect(f"file:{quote(asked['path'])}?mode=ro", uri=True)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
    database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    database.set_authorizer(_authorize)
    cursor = database.execute(asked["sql"], asked["parameters"])
    rows: list[list[Any]] = []
    size, more = 0, False
    for row in cursor:
        values = [_json_value(value) for value in row]
        size += len(json.dumps(values))
        if len(rows) == asked["rows"] or size > asked["bytes"]:
            more = True
            break
        rows.append(values)
    columns = [column[0] for column in cursor.description or ()]
    return {"columns": columns, "rows": rows, "more": more}


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"[{len(value)} bytes]"
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    return value


def main() -> None:
    """Read the question from stdin and write the answer to stdout."""
    asked = json.loads(sys.stdin.buffer.read())
    limit(asked["memory_mib"])
    try:
        answer = query(asked)
    except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError) as error:
        answer = {"error": f"SQLite: {error}"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
