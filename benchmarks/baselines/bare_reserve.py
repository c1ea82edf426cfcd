"""The least that reserve and settle take in SQLite: no rules, times or owners."""

from __future__ import annotations

import sqlite3
from pathlib import Path

_SCOPES = ("agent", "tool", "run")


class BareReserve:
    """Three accounts, charged all or nothing, as plainly as `sqlite3` allows.

    Args:
        path: The file; write-ahead log, `synchronous=NORMAL`.
    """

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(
            "CREATE TABLE accounts (key TEXT PRIMARY KEY, used INT, held INT, most INT)"
        )
        self._db.execute("CREATE TABLE holds (id INT PRIMARY KEY, amount INT)")
        rows = [(key, 0, 0, 10**12) for key in _SCOPES]
        self._db.executemany("INSERT INTO accounts VALUES (?, ?, ?, ?)", rows)
        self._holds = 0

    def reserve(self) -> None:
        """Hold 1 of each account if all have room."""
        self._holds += 1
        self._db.execute("BEGIN IMMEDIATE")
        for key in _SCOPES:
            row = self._db.execute(
                "SELECT used + held + 1 <= most FROM accounts WHERE key = ?", (key,)
            ).fetchone()
            if row != (1,):
                raise ValueError(f"{key} is full")
        for key in _SCOPES:
            self._db.execute(
                "UPDATE accounts SET held = held + 1 WHERE key = ?", (key,)
            )
        self._db.execute("INSERT INTO holds VALUES (?, 1)", (self._holds,))
        self._db.execute("COMMIT")

    def settle(self) -> None:
        """Charge what the last hold holds."""
        self._db.execute("BEGIN IMMEDIATE")
        [amount] = self._db.execute(
            "SELECT amount FROM holds WHERE id = ?", (self._holds,)
        ).fetchone()
        for key in _SCOPES:
            self._db.execute(
                "UPDATE accounts SET held = held - ?1, used = used + ?1 WHERE key = ?2",
                (amount, key),
            )
        self._db.execute("DELETE FROM holds WHERE id = ?", (self._holds,))
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._db.close()
