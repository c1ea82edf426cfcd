"""The page of people: invitations, roles, passkeys, and the ends of sessions."""

from __future__ import annotations

import pytest

from ...support.console.browser import Browser, browser
from ...support.console.person import Client
from ...support.console.served import Service


def test_an_admin_invites_changes_and_removes(service: Service, anna: Browser) -> None:
    anna.open(f"{service.url}/people")
    anna.write(".card.row [name=name]", "berta")
    anna.script(
        "const form = document.querySelector('.card.row');"
        "form.role.value = 'approver'; form.whose.value = 'some';"
        "form.agents.value = 'buyer'"
    )
    anna.press("Make a link")
    link = anna.find("#invitation").text
    with browser() as berta:
        berta.open(link)
        berta.reads("an approver for buyer")
        berta.press("Register a passkey")
        berta.until(lambda: "Inbox" in berta.driver.title)
        found = service.people.find("berta")
        assert found is not None
        assert (found.role, found.agents) == ("approver", ("buyer",))
        anna.open(f"{service.url}/people")
        anna.click("details summary")
        anna.script("document.querySelector('details form').role.value = 'viewer'")
        anna.send("Change")
        found = service.people.find("berta")
        assert found is not None and found.role == "viewer"
        anna.click("details summary")
        anna.send("Remove berta")
        assert service.people.find("berta") is None
        berta.open(service.url)
        assert "Sign in" in berta.driver.title
    assert anna.complaints() == []
    log = service.host.config.audit.path
    assert log is not None
    text = log.read_text()
    for event in ("person_invited", "person_changed", "person_removed"):
        assert f'"{event}"' in text
    assert link.rpartition("/")[2] not in text


def test_a_person_adds_and_removes_passkeys(service: Service, anna: Browser) -> None:
    anna.open(f"{service.url}/people")
    [first] = service.people.passkeys("anna")
    anna.press("Add a passkey")
    # The authenticator has one of this person already.
    anna.until(lambda: "The passkey was not used" in anna.text)
    anna.press("Remove")
    anna.reads("nobody could manage people any more")

    assert service.people.passkeys("anna") == [first]


def test_nobody_else_manages_people(service: Service) -> None:
    carl = Client(service, "operator")
    service.signed_in("dora", "viewer")
    own, other = None, None
    for session in service.sessions.all():
        own = session if session.person.id == "carl" else own
        other = session if session.person.id == "dora" else other
    assert own is not None and other is not None
    told = [
        carl.post("/people/invite", name="eva", role="admin", whose="all"),
        carl.post("/people/carl/role", role="admin", whose="all"),
        carl.post("/people/dora/remove"),
        carl.post("/people/passkeys/remove", person="anna", key="x"),
        carl.post(f"/people/sessions/{other.id}/end"),
    ]
    page = carl.get("/people").text
    ended = carl.post(f"/people/sessions/{own.id}/end")

    assert [each.status_code for each in told] == [403] * 5
    assert "dora" not in page and "Make a link" not in page
    assert (ended.status_code, carl.get("/people").status_code) == (303, 303)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": "Eva", "role": "viewer"}, "small letters"),
        ({"name": "builder", "role": "viewer"}, "is an agent"),
        ({"name": "eva", "role": "root"}, "no such role"),
        (
            {"name": "eva", "role": "viewer", "whose": "some", "agents": "x"},
            "no policy",
        ),
    ],
)
def test_an_invitation_that_means_nothing_is_refused(
    service: Service, fields: dict[str, str], told: str
) -> None:
    answer = Client(service, "admin").post("/people/invite", **fields)

    assert (answer.status_code, told in answer.text) == (409, True)


def test_an_invitation_to_a_person_of_old_keeps_their_role(service: Service) -> None:
    service.signed_in("fred", "viewer", ("buyer",))
    page = Client(service, "admin").post(
        "/people/invite", name="fred", role="admin", whose="all"
    )
    code = page.text.partition("/join/")[2][:22]
    link = service.people.link(code)

    assert link is not None
    assert (link.person_id, link.role, link.agents) == ("fred", "viewer", ("buyer",))
