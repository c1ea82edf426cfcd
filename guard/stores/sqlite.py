"""Counters in an SQLite file, shared by the processes of one machine."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..values.amounts import MICROSECONDS, Clock, microseconds, steady_time
from .base import (
    CORRECTION_MICROSECONDS,
    RateHit,
    Reservation,
    ReservationOutcome,
    evaluate,
    room_in_bucket,
)
from .sqlite_file import CounterFile

_KNOWN_HOLDS = 4_096
_SWEEP_EVERY = 60 * MICROSECONDS
_LOOK_ROWS = 1_000
"""Rows that one operation sweeps. When it is reached the next one goes on."""

_SWEPT = {
    "hits": ("key, at", "forget_at <= ?"),
    "accounts": ("key", "held = 0 AND forget_at > 0 AND forget_at <= ?"),
    "buckets": ("key", "full_at <= ?"),
}
"""Tables, each with the order of its rows and the condition of those to forget."""


@dataclass(slots=True)
class _AccountRow:
    used: int
    held: int


class Part(NamedTuple):
    """The part of a hold that is of one account."""

    key: str
    held: int
    refund: bool
    keep: int

    @property
    def due(self) -> int:
        """The charge if the call is never settled."""
        return 0 if self.refund else self.held


class SQLiteStore(CounterFile):
    """Counters that last, for several processes of one machine.

    What was admitted stays counted when a process is killed. The holds of a process
    that has died expire as soon as another process needs the room.

    Args:
        path: The file; created with mode 0600, beside files of the same name with
            `-wal`, `-shm` and `-owner-...`.
        clock: The time in seconds.
        deadline: Seconds to wait for other processes' transactions; default 0.5. When
            it is reached the operation fails as `store_unavailable`.

    Raises:
        ConfigError: The file cannot be opened, or another version wrote it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock = steady_time,
        deadline: float = 0.5,
    ) -> None:
        self._clock = clock
        self._now = 0
        self._swept = 0
        self._sweeping: list[str] = []
        self._swept_to: tuple[Any, ...] = ()
        self._reaped = 0
        self._parts: dict[str, list[Part]] = {}
        """The parts of open holds of this process, which saves reading them."""

        super().__init__(Path(path).absolute(), deadline)

    async def reserve(self, request: Reservation) -> ReservationOutcome:
        return await self._in_thread(lambda: self._reserve(request))

    async def peek(self, request: Reservation) -> ReservationOutcome:
        return await self._in_thread(lambda: self._peek(request))

    async def settle(self, hold_id: str, actual: Sequence[int] | None) -> bool:
        return await self._in_thread(lambda: self._settle(hold_id, actual))

    async def reset(self, prefix: str) -> int:
        return await self._in_thread(lambda: self._reset(prefix))

    def _look_at_clock(self) -> int:
        self._now = max(self._now, microseconds(self._clock()))
        return self._now

    def _tick(self) -> int:
        now = self._look_at_clock()
        ended = self._db.execute(
            "SELECT id, expires, parts, charged FROM holds WHERE expires <= ?", (now,)
        )
        for hold_id, expires, parts, charged in ended.fetchall():
            if charged is None:
                self._end_unsettled(
                    hold_id, _parts(parts), now, expires + CORRECTION_MICROSECONDS
                )
            else:
                self._db.execute("DELETE FROM holds WHERE id = ?", (hold_id,))
        if now - self._swept >= _SWEEP_EVERY:
            self._swept = now
            self._sweeping = self._sweeping or list(_SWEPT)
        if self._sweeping:
            self._sweep(self._sweeping[-1], now)
        return now

    def _end_unsettled(
        self, hold_id: str, parts: list[Part], now: int, forget_at: int
    ) -> None:
        due = _due(parts)
        self._end(parts, due, now)
        self._db.execute(
            "UPDATE holds SET charged = ?, expires = ? WHERE id = ?",
            (json.dumps(due), forget_at, hold_id),
        )

    def _sweep(self, table: str, now: int) -> None:
        """Forget those of the next rows of a table that no longer count."""
        order, over = _SWEPT[table]
        marks = ", ".join("?" * (order.count(",") + 1))
        since = f"({order}) > ({marks})" if self._swept_to else "1"
        last = self._db.execute(
            f"SELECT {order} FROM {table} WHERE {since} "  # noqa: S608
            f"ORDER BY {order} LIMIT 1 OFFSET {_LOOK_ROWS - 1}",
            self._swept_to,
        ).fetchone()
        until = "1" if last is None else f"({order}) <= ({marks})"
        self._db.execute(
            f"DELETE FROM {table} WHERE {since} AND {until} AND {over}",  # noqa: S608
            (*self._swept_to, *(last or ()), now),
        )
        self._swept_to = last or ()
        if last is None:
            self._sweeping.pop()

    def _peek(self, request: Reservation) -> ReservationOutcome:
        self._tick()
        return self._evaluate(request)

    def _reserve(self, request: Reservation) -> ReservationOutcome:
        now = self._tick()
        outcome = self._evaluate(request)
        held = any(held for _, held, _ in outcome.levels)
        if not outcome.admitted and held and now - self._reaped >= MICROSECONDS:
            self._reaped = now
            if self._reap(now):
                outcome = self._evaluate(request)
        if outcome.admitted:
            self._take(request, outcome, now)
        return outcome

    def _reap(self, now: int) -> bool:
        """End the holds of processes that have died; return whether there were any."""
        owners = self._owners() - {self._owner.name}
        # A missing file proves nothing: those holds expire at their end.
        dead = [owner for owner in owners if self._owner.state_of(owner) == "dead"]
        for owner in dead:
            holds = self._db.execute(
                "SELECT id, parts FROM holds WHERE owner = ? AND charged IS NULL",
                (owner,),
            )
            for hold_id, parts in holds.fetchall():
                self._end_unsettled(
                    hold_id, _parts(parts), now, now + CORRECTION_MICROSECONDS
                )
        self._buried = dead
        return bool(dead)

    def _evaluate(self, request: Reservation) -> ReservationOutcome:
        hits = [(self, hit) for hit in request.hits]
        charges = [(self._account(charge.key), charge) for charge in request.charges]
        return ReservationOutcome._make(evaluate(hits, charges, self._now))

    def _account(self, key: str) -> _AccountRow:
        row = self._db.execute(
            "SELECT used, held FROM accounts WHERE key = ?", (key,)
        ).fetchone()
        return _AccountRow(*row or (0, 0))

    def room(self, hit: RateHit, now: int) -> tuple[int, int]:
        """Return the wait and the room of a rate; called inside a transaction."""
        if hit.interval:
            row = self._db.execute(
                "SELECT full_at FROM buckets WHERE key = ?", (hit.key,)
            ).fetchone()
            full_at, latest = row[0] if row else 0, now + hit.limit * hit.interval
            # One of a limit that is only tried has no bound.
            if hit.enforced and full_at > latest:
                full_at = latest
                self._db.execute(
                    "UPDATE buckets SET full_at = ? WHERE key = ?", (latest, hit.key)
                )
            return room_in_bucket(full_at, now, hit.interval, hit.limit, hit.calls)
        since = now - hit.window
        calls, last = self._db.execute(
            "SELECT COALESCE(SUM(calls), 0), MAX(at) FROM hits "
            "WHERE key = ? AND at > ?",
            (hit.key, since),
        ).fetchone()
        if calls and last > now + hit.window:
            ahead = _take_back(self._db, hit, now)
            self._count(hit._replace(calls=ahead), now)
        free = hit.limit - calls
        if hit.calls <= free:
            return 0, free
        free = max(free, 0)
        if hit.calls > hit.limit:
            return hit.window, free
        rows = self._db.execute(
            "SELECT at, calls FROM hits WHERE key = ? AND at > ? ORDER BY at",
            (hit.key, since),
        )
        for at, number in rows:
            calls -= number
            if calls + hit.calls <= hit.limit:
                return at + hit.window - now, free
        raise AssertionError("unreachable: they fit into an empty window")

    def _take(
        self, request: Reservation, outcome: ReservationOutcome, now: int
    ) -> None:
        for hit, wait in zip(request.hits, outcome.waits, strict=True):
            if not wait:
                self._count(hit, now)
        if request.charges:
            self._hold(request, [amount for _, _, amount in outcome.levels], now)

    def _hold(self, request: Reservation, amounts: list[int], now: int) -> None:
        parts, rows = [], []
        for charge, amount in zip(request.charges, amounts, strict=True):
            forget_at = now + charge.keep if charge.keep else 0
            rows.append((charge.key, amount, forget_at))
            parts.append(Part(charge.key, amount, charge.refund, charge.keep))
        self._db.executemany(
            "INSERT INTO accounts VALUES (?1, 0, ?2, ?3) ON CONFLICT DO UPDATE "
            "SET held = held + ?2, forget_at = ?3",
            rows,
        )
        hold_id, ends = request.hold_id, now + request.hold_microseconds
        self._db.execute(
            "INSERT INTO holds VALUES (?, ?, ?, ?, NULL)",
            (hold_id, self._owner.name, ends, _text(tuple(parts))),
        )
        if len(self._parts) >= _KNOWN_HOLDS:
            self._parts.clear()
        self._parts[hold_id] = parts

    def _count(self, hit: RateHit, now: int) -> None:
        if hit.interval:
            self._db.execute(
                "INSERT INTO buckets VALUES (?1, ?2 + ?3) ON CONFLICT DO UPDATE "
                "SET full_at = MAX(full_at, ?2) + ?3",
                (hit.key, now, hit.interval * hit.calls),
            )
        else:
            self._db.execute(
                "INSERT INTO hits VALUES (?1, ?2, ?4, ?3) ON CONFLICT DO UPDATE "
                "SET calls = calls + ?4",
                (hit.key, now, now + hit.window, hit.calls),
            )

    def _settle(self, hold_id: str, actual: Sequence[int] | None) -> bool:
        parts = self._parts.pop(hold_id, None)
        if parts is not None:
            now = self._look_at_clock()
            # Deletes the hold only if it is open; sweeping can wait for the next look.
            found = self._db.execute(
                "DELETE FROM holds WHERE id = ? AND expires > ? AND charged IS NULL",
                (hold_id, now),
            )
            if found.rowcount:
                self._end(parts, _due(parts) if actual is None else actual, now)
                return True
        return self._settle_late(hold_id, actual)

    def _settle_late(self, hold_id: str, actual: Sequence[int] | None) -> bool:
        """Settle a hold that may have ended, or that another process took."""
        now = self._tick()
        row = self._db.execute(
            "SELECT parts, charged FROM holds WHERE id = ?", (hold_id,)
        ).fetchone()
        if row is None or (row[1] is not None and actual is None):
            return False
        self._db.execute("DELETE FROM holds WHERE id = ?", (hold_id,))
        parts = _parts(row[0])
        due = _due(parts) if actual is None else list(actual)
        if row[1] is None:
            self._end(parts, due, now)
        else:
            charged = json.loads(row[1])
            late = [new - old for new, old in zip(due, charged, strict=True)]
            self._use(parts, late, [0] * len(parts), now)
        return True

    def _end(self, parts: list[Part], due: Sequence[int], now: int) -> None:
        self._use(parts, due, [part.held for part in parts], now)

    def _use(
        self, parts: list[Part], due: Sequence[int], freed: Sequence[int], now: int
    ) -> None:
        rows = [
            (part.key, amount, free, now + part.keep if part.keep else 0)
            for part, amount, free in zip(parts, due, freed, strict=True)
        ]
        self._db.executemany(
            "INSERT INTO accounts VALUES (?1, MAX(?2, 0), 0, ?4) "
            "ON CONFLICT DO UPDATE SET used = MAX(used + ?2, 0), "
            "held = held - ?3, forget_at = ?4",
            rows,
        )

    def _reset(self, prefix: str) -> int:
        self._tick()
        # Not LIKE: ids may hold its wildcards.
        match = (len(prefix), prefix)
        found = 0
        for table, change in (
            ("accounts", "UPDATE accounts SET used = 0"),
            ("hits", "DELETE FROM hits"),
            ("buckets", "DELETE FROM buckets"),
        ):
            keys = f"SELECT COUNT(DISTINCT key) FROM {table}"  # noqa: S608
            where = " WHERE SUBSTR(key, 1, ?) = ?"
            found += self._db.execute(keys + where, match).fetchone()[0]
            self._db.execute(change + where, match)
        return found


@lru_cache(maxsize=1024)
def _text(parts: tuple[Part, ...]) -> str:
    return json.dumps(parts)


def _due(parts: list[Part]) -> list[int]:
    return [part.due for part in parts]


def _parts(text: str) -> list[Part]:
    values: list[tuple[Any, ...]] = json.loads(text)
    return [Part(*value) for value in values]


def _take_back(db: sqlite3.Connection, hit: RateHit, now: int) -> int:
    """Forget, and return, calls of a clock that was ahead and was set right since."""
    ahead = (hit.key, now + hit.window)
    where = "FROM hits WHERE key = ? AND at > ?"
    [calls] = db.execute(f"SELECT SUM(calls) {where}", ahead).fetchone()
    db.execute(f"DELETE {where}", ahead)
    return int(calls)
