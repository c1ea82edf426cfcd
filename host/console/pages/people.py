"""People: invitations, roles, passkeys and sessions; each sees at least their own."""

from __future__ import annotations

from collections.abc import Collection
from time import time

from starlette.responses import Response

from toolcell.core import InvalidInputError

from ...operator.people import (
    INVITATION_SECONDS,
    ROLES,
    Passkey,
    Person,
    Role,
    check_name,
)
from ...operator.vouching import Vouched
from ..accounts.sessions import LoginSession
from ..web.visit import ActionRefusedError, Visit


async def show(visit: Visit) -> Response:
    """Show the person who asks, and admins everybody."""
    return _page(visit)


async def invite(visit: Visit) -> Response:
    """Make a one-time link for a person, and show it this once."""
    name = check_name(visit.form.get("name", ""))
    known = visit.console.people.find(name)
    role, agents = _rights(visit)
    if known is not None:
        role, agents = known.role, known.agents
    elif name in _agents(visit):
        raise InvalidInputError(
            f"{name} is an agent", hint="an agent answers nothing: choose another name"
        )
    await visit.record("person_invited", person=name, role=role, agents=agents)
    code = visit.console.people.make_link(
        role=role,
        person_id=name,
        agents=agents,
        seconds=INVITATION_SECONDS,
        made_by=visit.person.id,
    )
    return _page(visit, invited=name, url=f"{visit.console.origin}/join/{code}")


async def take_back(visit: Visit) -> Response:
    """Take an invitation back that nobody has used."""
    link_id = visit.part("id")
    await visit.record("invitation_taken_back", link=link_id)
    if not visit.console.people.take_back(link_id):
        raise ActionRefusedError(404, "there is no such invitation", hint="it was used")
    return visit.go("/people")


async def set_role(visit: Visit) -> Response:
    """Change the rights of a person; approvals that they do not cover are withdrawn."""
    person = _person(visit)
    role, agents = _rights(visit)
    await visit.record("person_changed", person=person.id, role=role, agents=agents)
    await visit.console.rights.set_role(person.id, role, agents, by=visit.person.id)
    return visit.go("/people")


async def remove(visit: Visit) -> Response:
    """Remove a person, with passkeys and sessions; approvals are withdrawn."""
    person = _person(visit)
    await visit.record("person_removed", person=person.id)
    await visit.console.rights.remove(person.id, by=visit.person.id)
    return visit.go("/people")


async def add_passkey(visit: Visit) -> Response:
    """Register a further passkey of the person who asks."""
    session = visit.session
    assert session is not None
    if not visit.fresh_seconds:
        raise ActionRefusedError(
            403, "you signed in some time ago", hint="sign in again to add a passkey"
        )
    proof = visit.form.get("proof", "")
    key = visit.console.passkeys.register(_purpose(session), visit.person.id, proof)
    await visit.record("passkey_added", person=visit.person.id)
    visit.console.people.add_passkey(key)
    vouched = visit.console.vouching.of_passkey(session.passkey)
    if vouched is not None:
        visit.console.vouching.note(key.id, vouched)
    return visit.go("/people")


async def remove_passkey(visit: Visit) -> Response:
    """Remove a passkey, of the person who asks or by an admin."""
    name, text = visit.form.get("person", ""), visit.form.get("key", "")
    if name != visit.person.id:
        visit.require("admin")
    keys = visit.console.people.passkeys(name)
    [*found] = [key for key in keys if key.text == text]
    if not found:
        raise ActionRefusedError(404, "there is no such passkey")
    await visit.record("passkey_removed", person=name, passkey=text)
    visit.console.people.remove_passkey(name, found[0].id)
    return visit.go("/people")


async def end_session(visit: Visit) -> Response:
    """End a session, of the person who asks or by an admin."""
    sessions = visit.console.sessions
    for session in sessions.all():
        if session.id == visit.part("id"):
            if session.person.id != visit.person.id:
                visit.require("admin")
            await visit.record("person_session_ended", person=session.person.id)
            sessions.close(session.id)
            return visit.go("/people")
    raise ActionRefusedError(404, "there is no such session", hint="it has ended")


def _page(visit: Visit, *, invited: str = "", url: str = "") -> Response:
    console, session = visit.console, visit.session
    assert session is not None
    is_admin = visit.person.has("admin")
    shown = console.people.all() if is_admin else [visit.person]
    keys: dict[str, list[tuple[Passkey, Vouched | None]]] = {
        person.id: [
            (k, console.vouching.of_passkey(k.id))
            for k in console.people.passkeys(person.id)
        ]
        for person in shown
    }
    sessions = [
        each for each in console.sessions.all() if is_admin or each.person == shown[0]
    ]
    return visit.render(
        "people.html",
        people=shown,
        keys=keys,
        sessions=sessions,
        invitations=console.people.invitations() if is_admin else [],
        news=visit.query("news"),
        roles=ROLES,
        now=time(),
        options=console.passkeys.creation_options(_purpose(session), visit.person.id),
        invited=invited,
        url=url,
    )


def _purpose(session: LoginSession) -> str:
    return f"add {session.id}"


def _person(visit: Visit) -> Person:
    person = visit.console.people.find(visit.part("id"))
    if person is None:
        raise ActionRefusedError(404, "there is no such person")
    if person.issuer is not None:
        raise ActionRefusedError(
            409,
            f"{person.id} signs in with {person.issuer}",
            hint="change the table [console.oidc] of the configuration",
        )
    return person


def _rights(visit: Visit) -> tuple[Role, tuple[str, ...] | None]:
    """Return the role and the agents that a form names."""
    agents = None
    if visit.form.get("whose") == "some":
        words = visit.form.get("agents", "").replace(",", " ").split()
        agents = tuple(dict.fromkeys(words))
        known = _agents(visit)
        unknown = [agent for agent in agents if agent not in known]
        if unknown:
            raise InvalidInputError(
                f"there is no policy of an agent {unknown[0]!r}",
                hint="name agents of policies; case counts",
            )
    for role in ROLES:
        if visit.form.get("role") == role:
            return role, agents
    raise InvalidInputError("there is no such role", hint="choose one of the roles")


def _agents(visit: Visit) -> Collection[str]:
    return {policy.agent_id for policy in visit.sources.config.all_policies()}
