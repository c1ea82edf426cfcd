"""Sessions of people who are signed in, and failed attempts to do so."""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from dataclasses import dataclass, replace

from ...config.state_file import secret_hash
from ...operator.people import People, Person
from ...operator.people_file import PeopleFile

FRESH_SECONDS = 300.0
"""Seconds after a touch of the passkey in which acts that need one are accepted."""

MAX_FAILURES = 20
"""Failed attempts of one address, or with one person's passkeys, within a minute. When
it is reached further ones are answered 429, unread."""

FAILURE_SECONDS = 60.0
_NOTE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class LoginSession:
    """A person who is signed in. Times are seconds since 1970 (UTC)."""

    id: str
    """Its public id: it opens nothing."""

    person: Person
    address: str
    created_at: float
    used_at: float
    fresh_at: float
    """The time of the last touch of a passkey."""

    expires_at: float
    passkey: bytes | None = None
    """The id of the passkey that opened it; None: it was opened in another way."""

    form_token: str = ""
    """The text that each form of this session has to carry."""


class Sessions:
    """Sessions; a browser has the secret of each, and the file its hash.

    Args:
        file: The file.
        seconds: Seconds that a session lasts.
        idle_seconds: Seconds without a request after which it ends.
    """

    def __init__(self, file: PeopleFile, seconds: float, idle_seconds: float) -> None:
        self._file = file
        self._people = People(file)
        self._seconds = seconds
        self._idle_seconds = idle_seconds

    def open(self, person_id: str, address: str, passkey: bytes | None = None) -> str:
        """Open a session of a person who has proved it; return its secret.

        Args:
            person_id: The person.
            address: Where the person is.
            passkey: The id of the passkey that proved it.
        """
        secret, session_id = secrets.token_urlsafe(32), secrets.token_hex(8)
        now = self._file.clock()
        self._file.run("DELETE FROM sessions WHERE expires_at <= ?", (now,))
        self._file.run(
            "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(session_id, secret_hash(secret), person_id, address),
                *(now, now, now, now + self._seconds),
            ),
        )
        if passkey is not None:
            self._file.run(
                "INSERT INTO session_keys VALUES (?, ?)", (session_id, passkey)
            )
        return secret

    def find(self, secret: str) -> LoginSession | None:
        """Return the session of a secret; None: it is unknown, ended or idle."""
        for session in self._read(f"{_SESSION} AND hash = ?", secret_hash(secret)):
            token = hmac.digest(secret.encode(), b"form", "sha256").hex()
            return replace(session, form_token=token)
        return None

    def note_use(self, session: LoginSession) -> None:
        """Note a request of a session, so that it is not idle."""
        now = self._file.clock()
        if now - session.used_at >= min(_NOTE_SECONDS, self._idle_seconds / 10):
            self._file.run(
                "UPDATE sessions SET used_at = ? WHERE id = ?", (now, session.id)
            )

    def note_touch(self, session: LoginSession) -> None:
        """Note that the person has just touched a passkey."""
        now = self._file.clock()
        self._file.run(
            "UPDATE sessions SET fresh_at = ? WHERE id = ?", (now, session.id)
        )

    def fresh_seconds(self, session: LoginSession) -> float:
        """Return the seconds left since the touch of a passkey; 0: none."""
        return max(0.0, session.fresh_at + FRESH_SECONDS - self._file.clock())

    def is_open(self, session_id: str) -> bool:
        """Return True if a session has not ended."""
        return self.person_of(session_id) is not None

    def person_of(self, session_id: str) -> Person | None:
        """Return the person of a session, as of now; None: the session has ended."""
        for session in self._read(f"{_SESSION} AND id = ?", session_id):
            return session.person
        return None

    def all(self) -> list[LoginSession]:
        """Return the open sessions of all people, the latest first."""
        return self._read(f"{_SESSION} ORDER BY created_at DESC")

    def close(self, session_id: str) -> None:
        """End a session now."""
        self._file.run("DELETE FROM sessions WHERE id = ?", (session_id,))

    def _read(self, query: str, *values: bytes | str) -> list[LoginSession]:
        now = self._file.clock()
        rows = self._file.run(query, (now, now - self._idle_seconds, *values))
        found = []
        for session_id, person_id, *facts in rows:
            person = self._people.find(person_id)
            if person is not None:
                found.append(LoginSession(session_id, person, *facts))
        return found


class Failures:
    """Failed attempts to sign in, shared by all processes with the file.

    Args:
        file: The file.
    """

    def __init__(self, file: PeopleFile) -> None:
        self._file = file

    def seconds_to_wait(self, key: str) -> int:
        """Return the seconds until a further attempt is read; 0: it is now."""
        since = self._file.clock() - FAILURE_SECONDS
        rows = self._file.run(
            "SELECT at FROM failures WHERE key = ? AND at > ? ORDER BY at DESC"
            " LIMIT 1 OFFSET ?",
            (_digest(key), since, MAX_FAILURES - 1),
        )
        return max(1, math.ceil(rows[0][0] - since)) if rows else 0

    def add(self, key: str) -> None:
        """Note a failure of an address, or with a person's passkeys."""
        now = self._file.clock()
        self._file.run("DELETE FROM failures WHERE at <= ?", (now - FAILURE_SECONDS,))
        self._file.run("INSERT INTO failures VALUES (?, ?)", (_digest(key), now))


_SESSION = """
SELECT id, person_id, address, created_at, used_at, fresh_at, expires_at, passkey
FROM sessions LEFT JOIN session_keys ON session = id
WHERE expires_at > ? AND used_at > ?
"""


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]
