"""Finds records in an SQLite file by what they are and by their words, by an index.

An index of text holds two columns for each record: hashes of its facts, such as its
agent, and its words. So any facts and words are found together, newest first, without
a look at records that do not fit. It takes records in several at once: one by one would
cost more than all else that is written of a call. Those that it has not taken in, the
newest and in a file of before the oldest, are looked at one after the other.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2s
from typing import Any, NamedTuple

from toolcell.core import ToolcellError

from .record import NumberedRecord
from .record_filter import RecordFilter, phrases, searched_text, searched_words
from .records import HOUR, read_record

SEARCH_SCHEMA = """
CREATE VIRTUAL TABLE IF NOT EXISTS tool_search
    USING fts5 (facts, words, tokenize = 'ascii', columnsize = 0);
CREATE TABLE IF NOT EXISTS tool_hours (
    hour INTEGER PRIMARY KEY,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL
);
CREATE TRIGGER IF NOT EXISTS tool_records_searched AFTER DELETE ON tool_records BEGIN
    DELETE FROM tool_search WHERE rowid = OLD.number;
END;
DROP TRIGGER IF EXISTS tool_records_unsearched;
DROP TABLE IF EXISTS tool_search_new;
"""

TAKEN_AT_ONCE = 64
"""New records that the index takes in together."""

BYTES_AT_ONCE = 262_144
"""Characters of their bodies after which it stops, as calls wait meanwhile."""

_log = logging.getLogger(__name__)
_LAST = 2**63 - 1
PLAIN = "tool_records"
FOUND = "tool_search CROSS JOIN tool_records ON number = tool_search.rowid"
_FACTS = ("agent_id", "tool_name", "outcome", "reason")
_MEMBERS = ("call_id", "parent_id", "agent_id", "tool_name")

_NOTE_HOUR = """
INSERT INTO tool_hours VALUES (?1, ?2, ?2)
ON CONFLICT DO UPDATE SET first = min(first, ?2), last = max(last, ?2)
"""


class Span(NamedTuple):
    """The records from one number to another; none if the last is below the first."""

    first: int
    last: int


def unindexed(database: sqlite3.Connection) -> int:
    """Return how many records the index has not taken in, at most."""
    inside = _indexed(database)
    oldest, newest = database.execute(
        "SELECT min(number), max(number) FROM tool_records"
    ).fetchone()
    if oldest is None:
        return 0
    return int(max(0, inside.first - oldest) + max(0, newest - inside.last))


def take_in(database: sqlite3.Connection, most: int) -> None:
    """Take so many records into the index: new ones, or else older ones."""
    inside = _indexed(database)
    look = "SELECT number, body FROM tool_records WHERE number {} LIMIT ?"
    newer, older = (
        look.format("> ? ORDER BY number"),
        look.format("< ? ORDER BY number DESC"),
    )
    rows = []
    if inside.last:
        rows = list(_some(database.execute(newer, [inside.last, most])))
    if not rows:
        end = inside.first if inside.last else _LAST
        rows = list(_some(database.execute(older, [end, most])))
    for number, body in rows:
        facts = words = ""
        try:
            record = read_record(body)
            facts = " ".join(_fact(name, getattr(record, name)) for name in _FACTS)
            # The tokenizer `ascii` finds the same words, and sooner.
            text = searched_text(record)
            words = text if text.isascii() else searched_words(record)
            hour = record.started_at.timestamp() // HOUR
            database.execute(_NOTE_HOUR, [hour, number])
        except (ValueError, TypeError, LookupError, ToolcellError) as error:
            _log.error("record %s cannot be read, nor found: %s", number, error)
        database.execute(
            "INSERT INTO tool_search (rowid, facts, words) VALUES (?, ?, ?)",
            [number, facts, words],
        )


def _some(rows: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield rows until their bodies have `BYTES_AT_ONCE` characters."""
    size = 0
    for number, body in rows:
        yield number, body
        size += len(body)
        if size >= BYTES_AT_ONCE:
            return


def forget(database: sqlite3.Connection, before: float) -> None:
    """Forget hours that began before a time, in seconds since 1970."""
    database.execute("DELETE FROM tool_hours WHERE hour < ?", [before // HOUR])


def newest(
    database: sqlite3.Connection, wanted: RecordFilter, before: int | None
) -> Iterator[NumberedRecord]:
    """Yield records that fit, newest first."""
    last = _LAST if before is None else before - 1
    inside, hours = _indexed(database), _of_hours(database, wanted)
    newer = Span(inside.last + 1, last)
    older = Span(1, min(inside.first - 1, last))
    first = max(inside.first, hours.first)
    inside = Span(first, min(inside.last, hours.last, last))
    tests, values = _tests(wanted)
    yield from _fitting(database, wanted, PLAIN, newer, tests, values)
    facts = _question(wanted)
    if facts and wanted.call_id is None and wanted.parent_id is None:
        match = " AND tool_search MATCH ?"
        yield from _fitting(database, wanted, FOUND, inside, match, [facts])
    else:
        yield from _fitting(database, wanted, PLAIN, inside, tests, values)
    yield from _fitting(database, wanted, PLAIN, older, tests, values)


def _fitting(
    database: sqlite3.Connection,
    wanted: RecordFilter,
    source: str,
    span: Span,
    tests: str,
    values: list[Any],
) -> Iterator[NumberedRecord]:
    if span.last < span.first:
        return
    table = source.split()[0]
    # Names of ours alone stand in the text; the values are bound.
    query = (
        f"SELECT tool_records.number, body FROM {source}"  # noqa: S608
        f" WHERE {table}.rowid BETWEEN ? AND ?{tests} ORDER BY {table}.rowid DESC"
    )
    for number, body in database.execute(query, [*span, *values]):
        record = read_record(body)
        if wanted.fits(record):
            yield NumberedRecord(number, record)


def _indexed(database: sqlite3.Connection) -> Span:
    """Return the records that the index has taken in."""
    ends = "SELECT rowid FROM tool_search ORDER BY rowid"
    first = database.execute(f"{ends} LIMIT 1").fetchone()
    if first is None:
        return Span(1, 0)
    return Span(*first, *database.execute(f"{ends} DESC LIMIT 1").fetchone())


def _of_hours(database: sqlite3.Connection, wanted: RecordFilter) -> Span:
    """Return between which numbers the index has records of the hours wanted."""
    since, until = (
        None if time is None else time.timestamp() // HOUR
        for time in (wanted.since, wanted.until)
    )
    if since is None and until is None:
        return Span(1, _LAST)
    low, high = database.execute(
        "SELECT min(first), max(last) FROM tool_hours"
        " WHERE (hour >= ?1 OR ?1 IS NULL) AND (hour <= ?2 OR ?2 IS NULL)",
        [since, until],
    ).fetchone()
    return Span(1, 0) if low is None else Span(low, high)


def _tests(wanted: RecordFilter) -> tuple[str, list[Any]]:
    """Return what SQLite knows about a record without its body, and the values."""
    times = {"started_at >= ?": wanted.since, "started_at < ?": wanted.until}
    tests = {
        **{f"{name} = ?": getattr(wanted, name) for name in _MEMBERS},
        **{test: time and time.timestamp() for test, time in times.items()},
    }
    asked = {test: value for test, value in tests.items() if value is not None}
    return "".join(f" AND {test}" for test in asked), list(asked.values())


def _question(wanted: RecordFilter) -> str:
    """Return the facts and words that are asked for, as FTS5 writes them."""
    values = {
        "agent_id": (wanted.agent_id,),
        "tool_name": (wanted.tool_name,),
        "outcome": wanted.outcomes or (None,),
        "reason": (wanted.reason,),
    }
    asked = [
        f"facts : ({' OR '.join(_fact(name, value) for value in any_of)})"
        for name, any_of in values.items()
        if any_of[0] is not None
    ]
    asked += [f'words : "{phrase}"' for phrase in phrases(wanted.text or "")]
    return " AND ".join(asked)


@lru_cache(maxsize=4096)
def _fact(name: str, value: str | None) -> str:
    # Names of agents and tools are of any form; a hash is one word.
    return blake2s(f"{name}:{value or ''}".encode(), digest_size=16).hexdigest()
