"""A file of people that was brought back: what it must not open again."""

from __future__ import annotations

from .people import ROLES, People, Role, agents_text
from .people_file import PeopleFile


def end_sessions(file: PeopleFile) -> None:
    """End all sessions and one-time links: some may have ended or been used since."""
    file.run("DELETE FROM sessions")
    file.run("DELETE FROM links")


def drop_person(file: PeopleFile, person_id: str) -> bool:
    """Remove a person, the last admin too; return whether there was one."""
    return bool(
        file.run(
            "DELETE FROM people WHERE id = ? AND issuer IS NULL RETURNING id",
            (person_id,),
        )
    )


def drop_passkeys(file: PeopleFile, person_id: str, text: str | None) -> bool:
    """Remove the passkey of a person that has an id as text, or with None all.

    Returns:
        True if there was one.
    """
    keys = [
        key
        for key in People(file).passkeys(person_id)
        if text is None or key.text == text
    ]
    for key in keys:
        file.run("DELETE FROM passkeys WHERE id = ?", (key.id,))
    return bool(keys)


def narrow_rights(
    file: PeopleFile, person_id: str, role: Role, agents: tuple[str, ...] | None
) -> bool:
    """Leave a person those rights that some others cover; return whether it changed."""
    person = People(file).find(person_id)
    if person is None or person.issuer is not None:
        return False
    least = min(person.role, role, key=ROLES.index)
    left = person.agents if agents is None else agents
    if person.agents is not None and agents is not None:
        left = tuple(agent for agent in person.agents if agent in agents)
    if (least, left) == (person.role, person.agents):
        return False
    file.run(
        "UPDATE people SET role = ?, agents = ? WHERE id = ?",
        (least, agents_text(left), person_id),
    )
    return True
