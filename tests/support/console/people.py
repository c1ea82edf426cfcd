"""People of a file, who joined by a link, each with a passkey."""

from __future__ import annotations

from toolcell.host.operator.people import Passkey, People, Role

NOW = 1_800_000_000.0


def passkey(person: str, key_id: bytes = b"k") -> Passkey:
    return Passkey(key_id, person, b"public", 0, NOW, None)


def join(
    people: People,
    name: str = "anna",
    role: Role = "admin",
    *,
    key_id: bytes | None = None,
    made_by: str | None = None,
) -> None:
    """Let a person register a passkey, by the link of an admin or the first one."""
    code = people.make_link(role=role, seconds=60, person_id=name, made_by=made_by)
    people.join(code, name, passkey(name, key_id or name.encode()))
