"""Tokens that name an agent to the server over HTTP; only their hashes are stored."""

from __future__ import annotations

import hmac
import logging
import secrets
import sqlite3
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, Literal

from toolcell.core import InvalidInputError, StoreUnavailableError

from ..config.state_file import StateFile, open_state_file, secret_hash

if TYPE_CHECKING:
    from ..config.host_config import HostConfig

TOKENS_FILE = "tokens.db"

MAX_DAYS = 3_650
"""Longest life of a token in days. A longer one is refused."""

MAX_LABEL = 200
"""Characters of a label. A longer one is refused."""

USE_SECONDS = 600.0
"""Seconds for which the last use of a token stands as it is, so that not every request
writes to the file."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY,
    hash BLOB NOT NULL,
    agent_id TEXT NOT NULL,
    asks_person INTEGER NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    revoked_at REAL,
    operator INTEGER NOT NULL DEFAULT 0,
    label TEXT NOT NULL DEFAULT '',
    last_used_at REAL
)
"""
_ADDED = {
    "operator": "INTEGER NOT NULL DEFAULT 0",
    "label": "TEXT NOT NULL DEFAULT ''",
    "last_used_at": "REAL",
}
"""Columns that files of earlier versions lack."""

_INSERT = """
INSERT INTO tokens (id, agent_id, asks_person, created_at, expires_at, revoked_at,
    operator, label, last_used_at, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_ALL = """
SELECT id, agent_id, asks_person, created_at, expires_at, revoked_at, operator, label,
    last_used_at
FROM tokens ORDER BY created_at
"""
_ONE = """
SELECT id, agent_id, asks_person, created_at, expires_at, revoked_at, operator, label,
    last_used_at, hash
FROM tokens WHERE id = ?
"""
_USE = "UPDATE tokens SET last_used_at = ? WHERE id = ?"
_REVOKE = (
    "UPDATE tokens SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL RETURNING id"
)
_PREFIX = "tcl"
_log = logging.getLogger("toolcell.host")
_E2B_PREFIX = "e2b"
_ID_CHARACTERS = 16
_NO_HASH = bytes(32)

Form = Literal["toolcell", "e2b"]
"""The form of a token: that of toolcell, or hexadecimal digits after `e2b_`, which the
SDKs of E2B ask for. Both are good for every server."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token, without its secret. Times are seconds since 1970 (UTC)."""

    id: str
    agent_id: str
    asks_person: bool
    """True if a person at its client may approve calls."""

    created_at: float
    expires_at: float
    revoked_at: float | None
    operator: bool = False
    """True if its holder may see and end what other agents do."""

    label: str = ""
    """The person or the place that has it, in the words of who made it."""

    last_used_at: float | None = field(default=None, compare=False)
    """The time of its last use, or up to ten minutes earlier. None: never used."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


class TokenStore(StateFile):
    """Tokens in an SQLite file that several processes share.

    Args:
        path: The file, in an existing folder.
        clock: Returns seconds since 1970 (UTC).

    Raises:
        ConfigError: The file cannot be used.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time) -> None:
        self._clock = clock
        self._noted: dict[str, float] = {}
        """The times at which uses were noted here, by id."""

        super().__init__(open_state_file(path, _prepare), "the tokens")

    def create(
        self,
        agent_id: str,
        *,
        days: float = 90.0,
        asks_person: bool = False,
        operator: bool = False,
        form: Form = "toolcell",
        label: str = "",
    ) -> tuple[Token, str]:
        """Make a token; return it and its text, which is not stored.

        Args:
            agent_id: The agent that the token names.
            days: Days that it is valid; default 90. When it is reached the token is
                refused.
            asks_person: True if a person at its client may approve calls; default
                false.
            operator: True if its holder may see and end what other agents do; default
                false.
            form: The form of its text.
            label: The person or the place that gets it, to be shown in lists; at most
                200 characters, default empty.

        Raises:
            InvalidInputError: `days` is not between 0 and 3,650, or the label too long.
        """
        if len(label) > MAX_LABEL:
            raise InvalidInputError(
                f"a label has at most {MAX_LABEL} characters", hint="give a shorter one"
            )
        if not 0 < days <= MAX_DAYS:
            raise InvalidInputError(
                f"a token lasts more than 0 and at most {MAX_DAYS} days",
                hint="name a number of days in between",
            )
        now = self._clock()
        end = now + days * 86_400
        token_id = secrets.token_hex(8)
        token = Token(token_id, agent_id, asks_person, now, end, None, operator, label)
        if form == "e2b":
            secret = secrets.token_hex(32)
            text = f"{_E2B_PREFIX}_{token.id}{secret}"
        else:
            secret = secrets.token_urlsafe(32)
            text = f"{_PREFIX}_{token.id}_{secret}"
        self.run(_INSERT, (*asdict(token).values(), secret_hash(secret)))
        return token, text

    def all(self) -> list[Token]:
        """Return all tokens, also expired and revoked ones, the oldest first."""
        rows = self.run(_ALL)
        return [_token(row) for row in rows]

    def revoke(self, token_id: str) -> None:
        """End a token now, for every server that uses this file.

        Raises:
            InvalidInputError: There is no such token, or it is revoked.
        """
        if not self.run(_REVOKE, (self._clock(), token_id)):
            raise InvalidInputError(
                f"there is no token {token_id!r} to revoke",
                hint="see `toolcell tokens list`",
            )

    def find(self, text: str) -> Token | None:
        """Return the token of a text; None if it is unknown, expired or revoked.

        The time that this takes does not depend on how much of a secret is right.
        """
        prefix, _, rest = text.partition("_")
        if prefix == _E2B_PREFIX:
            token_id, secret = rest[:_ID_CHARACTERS], rest[_ID_CHARACTERS:]
        else:
            token_id, _, secret = rest.partition("_")
        rows = self.run(_ONE, (token_id,))
        *fields, known = rows[0] if rows else (None, _NO_HASH)
        same = hmac.compare_digest(secret_hash(secret), known)
        if not rows or not same or prefix not in (_PREFIX, _E2B_PREFIX):
            return None
        token = _token(fields)
        if not self._is_valid(token):
            return None
        self._note_use(token)
        return token

    def is_valid(self, token_id: str) -> bool:
        """Return True for a token that is neither expired nor revoked."""
        rows = self.run(_ONE, (token_id,))
        return bool(rows) and self._is_valid(_token(rows[0][:-1]))

    def _note_use(self, token: Token) -> None:
        now = self._clock()
        noted = self._noted.get(token.id, token.last_used_at or 0.0)
        if now - noted < USE_SECONDS:
            return
        # First: where it cannot be noted, the next requests do not wait for it again.
        self._noted[token.id] = now
        try:
            self.run(_USE, (now, token.id))
        except StoreUnavailableError as error:
            # A token is good although nobody can note that it was used.
            _log.warning("the last use of token %s is not noted: %s", token.id, error)

    def _is_valid(self, token: Token) -> bool:
        return token.revoked_at is None and self._clock() < token.expires_at


def _prepare(file: sqlite3.Connection) -> None:
    file.execute(_SCHEMA)
    columns = [row[1] for row in file.execute("PRAGMA table_info (tokens)")]
    for name, kind in _ADDED.items():
        if name not in columns:
            file.execute(f"ALTER TABLE tokens ADD {name} {kind}")


def _token(row: Any) -> Token:
    token = Token(*row)
    return replace(
        token, asks_person=bool(token.asks_person), operator=bool(token.operator)
    )


def open_tokens(settings: HostConfig) -> TokenStore:
    """Return the tokens of a configuration.

    Raises:
        ConfigError: No state folder is configured, or the file cannot be used.
    """
    return TokenStore(settings.state.folder_for("tokens") / TOKENS_FILE)
