"""Links and passkeys that people let each other in by, with a clock of the test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from toolcell.core import InvalidInputError
from toolcell.host.console.accounts.sessions import MAX_FAILURES
from toolcell.host.operator.people import People
from toolcell.host.operator.people_file import PeopleFile
from toolcell.host.operator.vouching import (
    MARK_SECONDS,
    Vouched,
    Vouching,
)

from ....support.console.people import NOW, join, passkey
from ....support.console.person import Client
from ....support.console.served import Service
from ....support.guard.worker import SetClock


def approve(vouching: Vouching, *votes: tuple[str, bytes]) -> None:
    """Let people approve one request, each with a passkey."""
    request: Any = SimpleNamespace(id="r", approved_by=())
    for name, key in votes:
        vouching.vote(request, name, key)


@pytest.mark.promise("R8")
@pytest.mark.parametrize("end", ["removed", "demoted", "taken back"])
def test_an_invitation_dies_with_its_makers_rights(file: PeopleFile, end: str) -> None:
    people = People(file)
    join(people, "anna", key_id=b"a")
    join(people, "mallory", key_id=b"m")
    code = people.make_link(
        role="admin", seconds=60, person_id="more", made_by="mallory"
    )
    [shown] = people.invitations()

    assert (shown.person_id, shown.made_by) == ("more", "mallory")
    if end == "removed":
        with people.removing("mallory"):
            pass
    elif end == "demoted":
        with people.setting_role("mallory", "viewer", None):
            pass
    else:
        assert people.take_back(shown.id)

    assert people.link(code) is None
    assert people.invitations() == []
    with pytest.raises(InvalidInputError, match="good no longer"):
        people.join(code, "more", passkey("more"))


BOTH = (("anna", b"a"), ("bob", b"new"))


@pytest.mark.promise("R9")
@pytest.mark.parametrize("votes", [BOTH, BOTH[::-1]])
@pytest.mark.parametrize("known", [True, False])
def test_the_maker_of_a_link_is_not_two_people(
    file: PeopleFile, clock: SetClock, votes: tuple[tuple[str, bytes], ...], known: bool
) -> None:
    people, vouching = People(file), Vouching(file)
    join(people, "anna", key_id=b"a")
    if known:
        join(people, "bob", key_id=b"old")
    join(people, "bob", key_id=b"new", made_by="anna")

    with pytest.raises(InvalidInputError, match="could be you"):
        approve(vouching, *votes)
    file.run("DELETE FROM votes")
    clock.now += MARK_SECONDS
    if known:
        with pytest.raises(InvalidInputError, match="could be you"):
            approve(vouching, *votes)
        file.run("DELETE FROM votes")
        approve(vouching, ("anna", b"a"), ("bob", b"old"))
    else:
        approve(vouching, *votes)


@pytest.mark.promise("R9")
def test_a_chain_of_links_is_one_person(file: PeopleFile) -> None:
    people, vouching = People(file), Vouching(file)
    join(people, "anna", key_id=b"a")
    join(people, "dora", key_id=b"d")
    join(people, "bob", key_id=b"b", made_by="anna")
    join(people, "carl", key_id=b"c", made_by="bob")

    with pytest.raises(InvalidInputError, match="could be you"):
        approve(vouching, ("anna", b"a"), ("carl", b"c"))
    assert vouching.marks() == {}
    approve(vouching, ("dora", b"d"))
    file.run("DELETE FROM votes")
    approve(vouching, ("carl", b"c"), ("dora", b"d"))
    assert vouching.marks() == {"r": [("carl", "anna"), ("carl", "bob")]}


@pytest.mark.promise("R9")
def test_a_person_is_told_of_a_passkey_once(file: PeopleFile) -> None:
    people, vouching = People(file), Vouching(file)
    join(people, "anna", key_id=b"a")
    join(people, "bob", key_id=b"old")
    join(people, "bob", key_id=b"new", made_by="anna")

    assert not vouching.take_news("bob", b"new")
    assert vouching.take_news("bob", b"old")
    assert not vouching.take_news("bob", b"old")


def let_in(service: Service, name: str, by: str) -> Client:
    """Return a person who signed in with a passkey that came by another's link."""
    client, key = Client(service, name=name), name.encode()
    with service.people._file.second_connection() as file:
        row = key, name, NOW
        file.run("INSERT INTO passkeys VALUES (?, ?, x'', 0, ?, NULL)", row)
        Vouching(file).note(key, Vouched(by, file.clock(), added=False))
        file.run(
            "INSERT INTO session_keys SELECT id, ? FROM sessions WHERE person_id = ?",
            (key, name),
        )
    return client


@pytest.mark.promise("R9")
@pytest.mark.parametrize("act", ["approve", "deny"])
def test_the_inbox_marks_an_answer_that_may_be_anothers(
    service: Service, act: str
) -> None:
    request, call = service.asked(agent="treasurer", to=f"{act} marked")
    vic, path = let_in(service, f"vic-{act}", by="ines"), f"/approvals/{request.id}"
    digest = vic.digest(request)
    answer = vic.post(f"{path}/{act}", digest=digest, reason="")
    first = vic.get("/").text
    if act == "approve":
        service.deny(request)
    assert call.result(timeout=60).status == "denied"
    lately = vic.get("/").text.partition("No longer waiting")[2]

    assert answer.status_code == 303
    told = f"vic-{act} answered with a passkey that a link of ines let in."
    assert [told in each for each in (first, lately, vic.page(request))] == [True] * 3


@pytest.mark.promise("R10")
def test_links_of_pages_elsewhere_lock_nobody_out(service: Service) -> None:
    elsewhere = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    for _ in range(MAX_FAILURES):
        found = httpx2.get(f"{service.url}/join/x", headers=elsewhere, timeout=60)
        assert found.status_code == 404

    assert httpx2.get(service.link(), timeout=60).status_code == 200


@pytest.mark.promise("R8")
def test_an_admin_sees_invitations_and_takes_them_back(service: Service) -> None:
    admin = Client(service, "admin", name="ines")
    code = service.people.make_link(
        role="approver", seconds=600, person_id="guest", made_by="ines"
    )
    page = admin.get("/people").text
    path = page.partition('action="/people/invitations/')[2].partition('"')[0]
    taken = admin.post(f"/people/invitations/{path}")

    assert "Take back the invitation of guest" in page
    assert taken.status_code == 303
    assert service.people.link(code) is None
