"""Finds records in an SQLite file by what they are and by their words, by an index.

An index of text holds two columns for each record: hashes of its facts, such as its
agent, and its words. So any facts and words are found together, newest first, without
a look at records that do not fit. New records wait beside the index, and are taken in
several at once: one by one would cost more than all else that is written of a call.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from hashlib import blake2s
from itertools import chain
from typing import Any

from .record import NumberedRecord, ToolExecutionRecord
from .record_filter import RecordFilter, phrases, searched_words
from .record_json import read
from .records import HOUR

SEARCH_SCHEMA = """
CREATE VIRTUAL TABLE IF NOT EXISTS tool_search
    USING fts5 (facts, words, tokenize = 'ascii');
CREATE TABLE IF NOT EXISTS tool_search_new (
    number INTEGER PRIMARY KEY,
    facts TEXT NOT NULL,
    words TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS tool_hours (
    hour INTEGER PRIMARY KEY,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL
);
CREATE TRIGGER IF NOT EXISTS tool_records_unsearched AFTER DELETE ON tool_records BEGIN
    DELETE FROM tool_search WHERE rowid = OLD.number;
    DELETE FROM tool_search_new WHERE number = OLD.number;
END;
"""

TAKEN_AT_ONCE = 25
"""New records that the index takes in together."""

_OLDER_AT_ONCE = 1_000
_LAST = 2**63 - 1
NEW = "tool_search_new JOIN tool_records USING (number)"
FOUND = "tool_search CROSS JOIN tool_records ON number = tool_search.rowid"
_FACTS = ("agent_id", "tool_name", "outcome", "reason")

_NOTE_HOUR = """
INSERT INTO tool_hours VALUES (?1, ?2, ?2)
ON CONFLICT DO UPDATE SET first = min(first, ?2), last = max(last, ?2)
"""


def note(
    database: sqlite3.Connection, number: int, record: ToolExecutionRecord
) -> None:
    """Let a new record be found."""
    facts = [_fact(name, getattr(record, name)) for name in _FACTS]
    database.execute(
        "INSERT INTO tool_search_new VALUES (?, ?, ?)",
        [number, " ".join(facts), searched_words(record)],
    )
    database.execute(_NOTE_HOUR, [record.started_at.timestamp() // HOUR, number])
    if number % TAKEN_AT_ONCE == 0:
        take_in(database)


def take_in(database: sqlite3.Connection) -> None:
    """Move what is new into the index."""
    database.execute(
        "INSERT INTO tool_search (rowid, facts, words) SELECT * FROM tool_search_new"
    )
    database.execute("DELETE FROM tool_search_new")


def note_older(database: sqlite3.Connection) -> bool:
    """Let records of a file of before be found, some at once; False: all are."""
    rows = database.execute(
        "SELECT number, body FROM tool_records WHERE number >"
        " (SELECT ifnull(max(last), 0) FROM tool_hours) ORDER BY number LIMIT ?",
        [_OLDER_AT_ONCE],
    ).fetchall()
    for number, body in rows:
        note(database, number, read(body))
    return bool(rows)


def forget(database: sqlite3.Connection, before: float) -> None:
    """Forget hours that began before a time, in seconds since 1970."""
    database.execute("DELETE FROM tool_hours WHERE hour < ?", [before // HOUR])


def newest(
    database: sqlite3.Connection, wanted: RecordFilter, before: int | None
) -> Iterator[NumberedRecord]:
    """Yield records that fit, newest first."""
    first, last = _numbers(database, wanted, before)
    facts = _question(wanted)
    by_call = [
        name for name in ("call_id", "parent_id") if getattr(wanted, name) is not None
    ]
    if by_call or not facts:
        tests = "".join(f" AND {name} = ?" for name in by_call)
        values = [getattr(wanted, name) for name in by_call]
        found = _rows(database, "tool_records", tests, [first, last, *values])
    else:
        # Those that the index has not taken in are the newest.
        found = chain(
            _rows(database, NEW, "", [first, last]),
            _rows(
                database,
                FOUND,
                " AND tool_search MATCH ?",
                [first, last, facts],
            ),
        )
    yield from (each for each in found if wanted.fits(each.record))


def _rows(
    database: sqlite3.Connection, source: str, tests: str, values: list[Any]
) -> Iterator[NumberedRecord]:
    table = source.split()[0]
    # Names of ours alone stand in the text; the values are bound.
    query = (
        f"SELECT tool_records.number, body FROM {source}"  # noqa: S608
        f" WHERE {table}.rowid BETWEEN ? AND ?{tests} ORDER BY {table}.rowid DESC"
    )
    for number, body in database.execute(query, values):
        yield NumberedRecord(number, read(body))


def _numbers(
    database: sqlite3.Connection, wanted: RecordFilter, before: int | None
) -> tuple[int, int]:
    """Return the first and the last number that a record may have."""
    last = _LAST if before is None else before - 1
    since, until = (
        None if time is None else time.timestamp() // HOUR
        for time in (wanted.since, wanted.until)
    )
    if since is None and until is None:
        return 1, last
    [low, high] = database.execute(
        "SELECT min(first), max(last) FROM tool_hours"
        " WHERE (hour >= ?1 OR ?1 IS NULL) AND (hour <= ?2 OR ?2 IS NULL)",
        [since, until],
    ).fetchone()
    return (1, 0) if low is None else (low, min(high, last))


def _question(wanted: RecordFilter) -> str:
    """Return the facts and words that are asked for, as FTS5 writes them."""
    values = {
        "agent_id": (wanted.agent_id,),
        "tool_name": (wanted.tool_name,),
        "outcome": wanted.outcomes or (None,),
        "reason": (wanted.reason,),
    }
    asked = [
        f"facts : ({' OR '.join(_fact(name, each) for each in any_of)})"
        for name, any_of in values.items()
        if any_of[0] is not None
    ]
    asked += [f'words : "{each}"' for each in phrases(wanted.text or "")]
    return " AND ".join(asked)


def _fact(name: str, value: str | None) -> str:
    # Names of agents and tools are of any form; a hash is one word.
    return blake2s(f"{name}:{value or ''}".encode(), digest_size=16).hexdigest()
