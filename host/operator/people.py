"""People, their roles, their passkeys, and the one-time links that let them in."""

from __future__ import annotations

import base64
import json
import re
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

from toolcell.core import InvalidInputError

from ..config.state_file import secret_hash
from .people_file import PeopleFile
from .vouching import Vouched, Vouching

Role = Literal["viewer", "approver", "operator", "admin"]
"""The rights of a person; each role has those of the roles before it. A viewer sees all
pages; an approver answers requests of agents; an operator ends calls and sessions and
resets limits; an admin manages people, and makes grants of more than an hour."""

ROLES: tuple[Role, ...] = get_args(Role)
FIRST_LINK_SECONDS = 600.0
"""Seconds that the first link is good for. When it is reached a new start makes one."""

INVITATION_SECONDS = 86_400.0
"""Seconds that an invitation is good for. When it is reached it has to be made anew."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_LINK = """
SELECT person_id, role, agents, local, expires_at, made_by, substr(hex(hash), 1, 16)
FROM links WHERE expires_at > ? AND
(made_by IS NULL OR made_by IN (SELECT id FROM people WHERE role = 'admin'))
"""
_PERSON = "SELECT id, role, agents, created_at, issuer FROM people"


@dataclass(frozen=True, slots=True)
class Person:
    """A person who may sign in."""

    id: str
    """The name, as records have it: `approver`."""

    role: Role
    agents: tuple[str, ...] | None
    """The agents whose requests the person may answer. None: all."""

    created_at: float
    issuer: str | None = None
    """The OIDC issuer that knows the person; the rights are of the configuration."""

    def has(self, role: Role) -> bool:
        """Return True if the person has the rights of a role."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def may_answer(self, agent_id: str | None) -> bool:
        """Return True if the person may answer the requests of an agent."""
        return self.has("approver") and (self.agents is None or agent_id in self.agents)


@dataclass(frozen=True, slots=True)
class PasskeyLink:
    """A one-time link, with which a person registers a passkey."""

    person_id: str | None
    """The name that the person gets, or has. None: the person chooses it."""

    role: Role
    agents: tuple[str, ...] | None
    local: bool
    """True if it is good on the machine of the console alone."""

    expires_at: float
    made_by: str | None
    """The admin who made it. It is good as long as that person is one. None: the
    command line."""

    id: str
    """Its public id: it opens nothing."""


@dataclass(frozen=True, slots=True)
class Passkey:
    """A registered passkey. Times are seconds since 1970 (UTC)."""

    id: bytes
    person_id: str
    public_key: bytes
    uses: int
    """The counter of the authenticator; 0 where it has none."""

    created_at: float
    used_at: float | None

    @property
    def text(self) -> str:
        """Its id as text, for forms and records."""
        return base64.urlsafe_b64encode(self.id).rstrip(b"=").decode()


def check_name(name: str) -> str:
    """Return the name of a person.

    Raises:
        InvalidInputError: It has other characters than records should have.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            "a name has small letters, digits, dots, dashes and underscores",
            hint="write up to 64 of them, a letter or a digit first, such as anna",
        )
    return name


class People:
    """People and the ways in which they may sign in.

    Args:
        file: The file.
    """

    def __init__(self, file: PeopleFile) -> None:
        self._file = file
        self._vouching = Vouching(file)

    def all(self) -> list[Person]:
        """Return all people, by name."""
        return [_person(row) for row in self._file.run(f"{_PERSON} ORDER BY id")]

    def find(self, person_id: str) -> Person | None:
        """Return a person."""
        rows = self._file.run(f"{_PERSON} WHERE id = ?", (person_id,))
        return _person(rows[0]) if rows else None

    def of_subject(self, issuer: str, subject: str) -> Person | None:
        """Return the person whom an OIDC issuer knows as `subject`."""
        where = f"{_PERSON} WHERE issuer = ? AND subject = ?"
        rows = self._file.run(where, (issuer, subject))
        return _person(rows[0]) if rows else None

    @contextmanager
    def setting_role(
        self, person_id: str, role: Role, agents: tuple[str, ...] | None
    ) -> Iterator[None]:
        """Change the rights of a person when the block ends; not if it raises.

        Those of a person whom an OIDC issuer knows stay as configured.

        Raises:
            InvalidInputError: The last admin would be none any more.
        """
        with self._file.transaction():
            self._file.run(
                "UPDATE people SET role = ?, agents = ?"
                " WHERE id = ? AND issuer IS NULL",
                (role, agents_text(agents), person_id),
            )
            self._check_admin()
            yield

    @contextmanager
    def removing(self, person_id: str) -> Iterator[None]:
        """Remove a person when the block ends; not if it raises.

        Passkeys and sessions go with the person; records keep the name.

        Raises:
            InvalidInputError: It is the last admin.
        """
        with self._file.transaction():
            self._delete(person_id)
            self._check_admin()
            yield

    def _delete(self, person_id: str) -> None:
        self._file.run("DELETE FROM people WHERE id = ?", (person_id,))
        self._file.run(
            "DELETE FROM links WHERE person_id = ? OR made_by = ?",
            (person_id, person_id),
        )

    def _check_admin(self) -> None:
        if not self.has_admin():
            raise InvalidInputError(
                "nobody could manage people any more",
                hint="make another person an admin first",
            )

    def has_admin(self) -> bool:
        """Return True if there is an admin who can sign in."""
        return bool(
            self._file.run(
                "SELECT 1 FROM people WHERE role = 'admin' AND (issuer IS NOT NULL OR"
                " id IN (SELECT person_id FROM passkeys)) LIMIT 1"
            )
        )

    def subjects(self) -> dict[tuple[str, str], Person]:
        """Return the people whom OIDC issuers know, by issuer and subject."""
        rows = self._file.run(
            "SELECT id, role, agents, created_at, issuer, subject FROM people"
            " WHERE issuer IS NOT NULL ORDER BY id"
        )
        return {(row[4], row[5]): _person(row[:5]) for row in rows}

    @contextmanager
    def removing_subject(self, issuer: str, subject: str) -> Iterator[None]:
        """Remove the person of a subject when the block ends; not if it raises."""
        with self._file.transaction():
            person = self.of_subject(issuer, subject)
            if person is not None:
                self._delete(person.id)
            yield

    @contextmanager
    def putting_subject(
        self, issuer: str, subject: str, person: Person
    ) -> Iterator[None]:
        """Store the person of a subject when the block ends; not if it raises.

        Raises:
            InvalidInputError: The name is another person's.
        """
        with self._file.transaction():
            self._put_subject(issuer, subject, person)
            yield

    def _put_subject(self, issuer: str, subject: str, person: Person) -> None:
        try:
            self._file.run(
                "INSERT INTO people (id, role, agents, issuer, subject, created_at)"
                " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (issuer, subject)"
                " DO UPDATE SET role = excluded.role, agents = excluded.agents",
                (
                    *(person.id, person.role, agents_text(person.agents)),
                    *(issuer, subject, self._file.clock()),
                ),
            )
        except sqlite3.IntegrityError:
            raise _name_taken_error(person.id) from None

    def make_link(
        self,
        *,
        role: Role,
        person_id: str | None = None,
        agents: tuple[str, ...] | None = None,
        seconds: float,
        local: bool = False,
        made_by: str | None = None,
    ) -> str:
        """Store a one-time link, and return its code, of which only a hash is stored.

        Args:
            role: The role that it gives.
            person_id: The name that it gives; None: its user chooses one.
            agents: The agents whose requests the person may answer; None: all.
            seconds: Seconds that it is good for. When it is reached it is refused.
            local: True if it is good on this machine alone. Another link of the kind is
                good no longer.
            made_by: The name of who made it; None: the command line.
        """
        code = secrets.token_urlsafe(16)
        now = self._file.clock()
        with self._file.transaction():
            self._file.run(
                "DELETE FROM links WHERE expires_at <= ? OR ? AND local", (now, local)
            )
            self._file.run(
                "INSERT INTO links VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    *(secret_hash(code), person_id, role, agents_text(agents), local),
                    *(made_by, now + seconds),
                ),
            )
        return code

    def link(self, code: str) -> PasskeyLink | None:
        """Return the link of a code; None: it is unknown, used or expired."""
        return next(iter(self._links("AND hash = ?", secret_hash(code))), None)

    def invitations(self) -> list[PasskeyLink]:
        """Return the links of people that are good now, the oldest first."""
        return self._links("AND made_by IS NOT NULL ORDER BY expires_at")

    def take_back(self, link_id: str) -> bool:
        """Remove an invitation; False: there is none with this id."""
        taken = "DELETE FROM links WHERE substr(hex(hash), 1, 16) = ? RETURNING 1"
        return bool(self._file.run(taken, (link_id,)))

    def _links(self, where: str, *values: bytes) -> list[PasskeyLink]:
        rows = self._file.run(f"{_LINK} {where}", (self._file.clock(), *values))
        return [
            PasskeyLink(person_id, role, _agents(agents), bool(local), *facts)
            for person_id, role, agents, local, *facts in rows
        ]

    def join(self, code: str, person_id: str, key: Passkey) -> Person:
        """Use a link up: store its person, unless known, and a passkey.

        Raises:
            InvalidInputError: The link is good no longer, or the name is taken.
        """
        with self._file.transaction():
            link = self.link(code)
            if link is None or link.person_id not in (None, person_id):
                raise InvalidInputError(
                    "this link is good no longer", hint="ask an admin for a new one"
                )
            self._file.run("DELETE FROM links WHERE hash = ?", (secret_hash(code),))
            is_known = link.person_id is not None and self.find(person_id) is not None
            if not is_known:
                self._add(check_name(person_id), link.role, link.agents)
            self.add_passkey(key)
            if link.made_by not in (None, person_id):
                vouched = Vouched(link.made_by, self._file.clock(), is_known)
                self._vouching.note(key.id, vouched)
        found = self.find(person_id)
        assert found is not None
        return found

    def _add(self, person_id: str, role: Role, agents: tuple[str, ...] | None) -> None:
        try:
            self._file.run(
                "INSERT INTO people (id, role, agents, created_at) VALUES (?, ?, ?, ?)",
                (person_id, role, agents_text(agents), self._file.clock()),
            )
        except sqlite3.IntegrityError:
            raise _name_taken_error(person_id) from None

    def passkeys(self, person_id: str) -> list[Passkey]:
        """Return the passkeys of a person, the oldest first."""
        rows = self._file.run(
            "SELECT * FROM passkeys WHERE person_id = ? ORDER BY created_at",
            (person_id,),
        )
        return [Passkey(*row) for row in rows]

    def passkey(self, key_id: bytes) -> Passkey | None:
        """Return a passkey by its id."""
        rows = self._file.run("SELECT * FROM passkeys WHERE id = ?", (key_id,))
        return Passkey(*rows[0]) if rows else None

    def add_passkey(self, key: Passkey) -> None:
        """Store a passkey. Raises InvalidInputError if it is registered already."""
        try:
            self._file.run(
                "INSERT INTO passkeys VALUES (?, ?, ?, ?, ?, ?)",
                (
                    *(key.id, key.person_id, key.public_key),
                    *(key.uses, key.created_at, key.used_at),
                ),
            )
        except sqlite3.IntegrityError:
            raise InvalidInputError(
                "this passkey is registered already", hint="use another one"
            ) from None

    def use_passkey(self, key_id: bytes, uses: int) -> None:
        """Note that a passkey was used."""
        self._file.run(
            "UPDATE passkeys SET uses = ?, used_at = ? WHERE id = ?",
            (uses, self._file.clock(), key_id),
        )

    def remove_passkey(self, person_id: str, key_id: bytes) -> None:
        """Remove a passkey of a person.

        Raises:
            InvalidInputError: It is the only way in for the last admin.
        """
        with self._file.transaction():
            self._file.run(
                "DELETE FROM passkeys WHERE id = ? AND person_id = ?",
                (key_id, person_id),
            )
            self._check_admin()


def _person(row: tuple[Any, ...]) -> Person:
    person_id, role, agents, created_at, issuer = row
    return Person(person_id, role, _agents(agents), created_at, issuer)


def _agents(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(json.loads(text))


def agents_text(agents: tuple[str, ...] | None) -> str | None:
    """Return agents as the file has them."""
    return None if agents is None else json.dumps(agents)


def _name_taken_error(person_id: str) -> InvalidInputError:
    return InvalidInputError(
        f"the name {person_id} is taken", hint="choose another name"
    )
