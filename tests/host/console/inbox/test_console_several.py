"""Calls that two people have to approve, in the console."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import takewhile

import httpx2
import pytest

from ....support.console.browser import Browser, browser
from ....support.console.client import signed_in
from ....support.console.person import Client
from ....support.console.served import Service


def test_two_people_at_once_both_count(service: Service, anna: Browser) -> None:
    request, call = service.asked(agent="treasurer", to="both")
    with browser() as berta:
        berta.join(service.link("approver"), "berta")
        both = (anna, berta)
        for person in both:
            person.open(f"{service.url}/approvals/{request.id}")
            person.reads("waits for 2 people")
            person.can_press(f"#approve-{request.id}")
        with ThreadPoolExecutor(2) as threads:
            pressed = [threads.submit(b.send, "Approve once") for b in both]
            for press in pressed:
                press.result(timeout=60)
        for person in both:
            # Whoever came first hears of the other one.
            person.reads("approved this call")
            assert "anna" in person.text and "berta" in person.text

    assert call.result(timeout=60).content == "paid 1 to both"


def test_an_open_page_hears_of_the_first_person(
    service: Service, anna: Browser
) -> None:
    request, call = service.asked(agent="treasurer", to="first")
    anna.open(service.url)
    carl = Client(service)
    carl.post(f"/approvals/{request.id}/approve", digest=carl.digest(request))
    anna.open_call(request.id)
    anna.reads("2 people; carl has approved it")
    anna.send("Approve once", f"form[contains(@action, '{request.id}')]")
    assert "carl and anna approved this call" in anna.text

    assert call.result(timeout=60).status == "ok"


def test_one_person_counts_once(service: Service) -> None:
    request, call = service.asked(agent="treasurer", to="twice")
    carl, path = Client(service), f"/approvals/{request.id}"
    digest = carl.digest(request)

    def approve(_: int) -> httpx2.Response:
        return carl.post(f"{path}/approve", digest=digest)

    with ThreadPoolExecutor(4) as threads:
        told = [*threads.map(approve, range(4))]
    page = carl.page(request)
    carl.post(f"{path}/deny", reason="after all not")

    assert sorted(each.status_code for each in told) == [303, 409, 409, 409]
    assert "You have approved it: 1 more of 2 people" in page
    assert f"{path}/approve" not in page and f"{path}/deny" in page
    # One refusal ends it, of whoever approved before, too.
    assert call.result(timeout=60).status == "denied"


def test_nothing_but_the_call_as_it_is_is_approved(service: Service) -> None:
    request, _ = service.asked(agent="treasurer", to="edited", sum=3)
    carl, path = Client(service, "admin"), f"/approvals/{request.id}"
    page = carl.page(request)
    granted = carl.post(
        f"{path}/grant", digest=carl.digest(request), seconds="60", scope="exact"
    )
    shown = carl.post(f"{path}/edit", arguments='{"to": "thief"}').text
    digest = shown.partition('name="digest" value="')[2][:64]
    edited = carl.post(f"{path}/edited", digest=digest, arguments='{"to": "thief"}')
    service.deny(request)

    assert "/grant" not in page and "/edit" not in page
    assert [granted.status_code, edited.status_code] == [409, 409]
    assert service.portal.call(service.host.approvals.grants) == []


def test_a_page_hears_what_was_before_it_listened(service: Service) -> None:
    def call(agent: str) -> None:
        service.call("note", agent=agent, text="").result(timeout=60)

    call("before")
    page = Client(service).get("/runs").text
    after = page.partition('data-after="')[2].partition('"')[0]
    call("between")
    with signed_in(service) as berta:
        lines = berta.lines(f"/events?after={after}")
        told = (line[6:] for line in lines if line.startswith("data: "))
        opened = json.loads(next(told))
        call("later")
        # Events of earlier tests may come between.
        agents = (json.loads(each)["agent"] for each in told)
        heard = {*takewhile(lambda agent: agent != "later", agents)}

    assert after and opened == {"complete": True}
    assert "between" in heard and "before" not in heard


def test_the_page_of_a_request_hears_of_the_first_person(
    service: Service, anna: Browser
) -> None:
    request, _ = service.asked(agent="treasurer", to="open page")
    anna.open(f"{service.url}/approvals/{request.id}")
    carl = Client(service)
    carl.post(f"/approvals/{request.id}/approve", digest=carl.digest(request))
    anna.reads("carl has approved it")
    service.deny(request)


def with_passkey(service: Service, name: str) -> Client:
    """Return a person whom no issuer knows, so that admins manage the person."""
    client = Client(service, name=name)
    with service.people._file.second_connection() as file:
        file.run("UPDATE people SET issuer = NULL WHERE id = ?", (name,))
    return client


@pytest.mark.parametrize("act", ["remove", "role"])
def test_who_may_answer_no_more_has_approved_nothing(
    service: Service, act: str
) -> None:
    request, call = service.asked(agent="treasurer", to=act)
    dora, carl = with_passkey(service, f"dora-{act}"), Client(service, "admin")
    path = f"/approvals/{request.id}/approve"
    assert dora.post(path, digest=dora.digest(request)).status_code == 303
    pages = [carl.page(request)]
    told = carl.post(f"/people/dora-{act}/{act}", role="viewer", whose="all")
    pages.append(carl.page(request))
    carl.post(path, digest=carl.digest(request))
    waiting = [each.id for each in service.waiting()]
    service.deny(request)
    log = service.host.config.audit.path

    assert told.status_code == 303
    assert [f"dora-{act}" in page for page in pages] == [True, False]
    assert waiting == [request.id] and call.result(timeout=60).status == "denied"
    assert log is not None and '"approvals_withdrawn"' in log.read_text()


def test_a_vote_of_a_person_who_is_being_removed_waits_and_is_none(
    service: Service,
) -> None:
    request, _ = service.asked(agent="treasurer", to="in flight")
    eva = with_passkey(service, "eva")
    digest = eva.digest(request)
    with (
        ThreadPoolExecutor(1) as threads,
        service.people._file.second_connection() as file,
    ):
        with file.transaction():
            file.run("DELETE FROM people WHERE id = 'eva'")
            path = f"/approvals/{request.id}/approve"
            vote = threads.submit(eva.post, path, digest=digest)
            assert not wait([vote], timeout=0.5).done
        told = vote.result(timeout=60)
    [waiting] = [each for each in service.waiting() if each.id == request.id]
    service.deny(request)

    # It waits at the vote, or has not arrived when its session ends.
    assert told.status_code in (409, 401)
    assert waiting.approved_by == ()
