"""The inbox: what is approved is what was seen, by a person who may, and once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import time

import pytest
from selenium.webdriver import Keys

from toolcell.guard import ShownRequest
from toolcell.host.console.pages.shown import show_request
from toolcell.host.operator.people import Role
from toolcell.host.runtime.sources import sources_of

from ....support.console.browser import Browser, browser
from ....support.console.layout import on_screen
from ....support.console.person import Client
from ....support.console.served import SECRET, Service, served


def test_of_two_people_at_once_one_wins(service: Service, anna: Browser) -> None:
    request, call = service.asked(to="both")
    url = f"{service.url}/approvals/{request.id}"
    with browser() as berta:
        berta.join(service.link("approver"), "berta")
        both = {"anna": anna, "berta": berta}
        for person in both.values():
            person.open(url)
            person.can_press(f"#approve-{request.id}")
        with ThreadPoolExecutor(2) as threads:
            pressed = [threads.submit(b.send, "Approve once") for b in both.values()]
            for press in pressed:
                press.result(timeout=60)
        told = {name: page.text for name, page in both.items()}

    result = call.result(timeout=60)
    assert result.content == "paid 1 to both"
    [winner] = [name for name, text in told.items() if "Not done" not in text]
    [loser] = both.keys() - {winner}
    assert f"{winner} approved this call" in told[winner]
    assert f"{winner} has approved this call already" in told[loser]
    found = service.portal.call(service.host.approvals.find, request.id)
    assert found is not None and found.approver == winner


def test_an_edit_is_decided_anew(service: Service, anna: Browser) -> None:
    request, call = service.asked(to="shop", sum=40)
    anna.open(f"{service.url}/approvals/{request.id}")
    for arguments, told in (
        ({"to": "thief"}, "it would fail all the same"),
        ({"to": 7}, "it would fail all the same"),
        ({"to": "shop", "sum": 20}, "asks a person about this call"),
    ):
        anna.script("document.querySelector('details:has(#arguments)').open = true")
        anna.write("#arguments", json.dumps(arguments))
        anna.send("See what is decided")
        assert told in anna.text
        assert not call.done()
    assert "-  &" not in anna.text and '+  "sum": 20' in anna.text
    places = "return ['gone', 'come'].map((name) => document.querySelector("
    places += "`.changes .${name}`).getBoundingClientRect().top)"
    for width, is_beside in ((1280, True), (360, False)):
        with on_screen(anna, width):
            gone, come = anna.script(places)
        assert (gone == come) is is_beside
    anna.press("Approve with these arguments")
    anna.reads("approved this call with other arguments")

    assert call.result(timeout=60).content == "paid 20 to shop"


def test_the_reason_of_a_denial_reaches_the_model(
    service: Service, anna: Browser
) -> None:
    request, call = service.asked(to="casino")
    anna.open(service.url)
    anna.open_call(request.id)
    anna.click(f"#why-{request.id}")
    anna.write(f"#reason-{request.id}", "we do not gamble")
    anna.press("Deny", f"form[contains(@action, '{request.id}')]")
    anna.reads("anna denied this call. Reason: we do not gamble")
    assert "would fail all the same" not in anna.text, "nobody asks any more"
    anna.open(f"{service.url}/audit")
    anna.reads("denied we do not gamble by anna")

    result = call.result(timeout=60)
    assert result.status == "denied"
    assert result.error is not None and "we do not gamble" in result.error.message


def test_a_request_that_was_ended_says_what_ended_it(service: Service) -> None:
    request, call = service.asked(to="over")
    end = partial(service.host.approvals.end, request.id, reason="the desk closed")
    assert service.portal.call(end)
    carl = Client(service)
    page, inbox = carl.get(f"/approvals/{request.id}").text, carl.get("/").text
    late = carl.post(f"/approvals/{request.id}/deny")

    assert "was ended without an answer: the desk closed" in page
    assert 'class="tag warn">ended</span> the desk closed' in inbox
    assert (late.status_code, "the desk closed" in late.text) == (409, True)
    assert call.result(timeout=60).status == "denied"


def test_a_page_that_is_open_keeps_up(service: Service, anna: Browser) -> None:
    anna.open(service.url)
    request, call = service.asked(to="live")
    anna.reads("live")
    said = anna.find("#announce").get_attribute("textContent")
    carl = Client(service)
    carl.post(f"/approvals/{request.id}/deny")
    anna.until(lambda: "live" not in anna.text)

    assert said == "1 call waits"
    assert call.result(timeout=60).status == "denied"


def test_the_focus_stays_where_it_was_as_the_page_keeps_up(
    service: Service, anna: Browser
) -> None:
    request, call = service.asked(to="focused", note="п")
    anna.open(service.url)
    for name in ("letters", "link", "approve"):
        anna.script(
            "window.before = document.getElementById(arguments[0]);"
            "for (const each of [...arguments].slice(1))"
            "  document.getElementById(each).open = true;"
            "window.before.focus();",
            *(f"{each}-{request.id}" for each in (name, "call", "ascii")),
        )
        other, _ = service.asked(to=f"beside the {name}")
        anna.reads(f"beside the {name}")
        now = "return [document.activeElement.id, document.contains(window.before)]"
        assert anna.script(now) == [f"{name}-{request.id}", False]
        assert anna.script(f"return document.getElementById('ascii-{request.id}').open")
        service.deny(other)
    # Others end meanwhile, and so the page is read again at any time.
    anna.can_press(f"#approve-{request.id}")
    while not call.done():
        anna.key(Keys.ENTER)

    assert call.result().content == "paid 1 to focused"


def test_what_a_person_writes_is_not_replaced(service: Service, anna: Browser) -> None:
    request, _ = service.asked(to="first")
    anna.open(service.url)
    anna.open_call(request.id)
    anna.click(f"#why-{request.id}")
    anna.write(f"#reason-{request.id}", "because")
    service.asked(to="second")
    anna.reads("This page has changed")

    field = anna.find(f"#reason-{request.id}")
    assert field.get_attribute("value") == "because"
    for waiting in service.waiting():
        Client(service).post(f"/approvals/{waiting.id}/deny")


def test_hidden_parts_are_opened_before_they_are_approved(
    service: Service, anna: Browser, tmp_path: Path
) -> None:
    request, call = service.asked(to="bank", note=f"token={SECRET}")
    url = f"{service.url}/approvals/{request.id}"
    anna.open(url)
    assert SECRET not in anna.driver.page_source
    assert not anna.all(f"#approve-{request.id}")
    assert "is hidden" in anna.text
    anna.press("Open the hidden parts")
    anna.reads(SECRET)
    anna.press("Approve once")
    anna.reads("anna approved this call")

    assert call.result(timeout=60).status == "ok"
    log = service.host.config.audit.path
    assert log is not None
    kept = log.read_text()
    assert '"approval_opened"' in kept and SECRET not in kept


def test_hidden_parts_are_not_approved_unseen(service: Service) -> None:
    request, call = service.asked(to="bank", note=f"token={SECRET}")
    carl, path = Client(service), f"/approvals/{request.id}"
    unseen = carl.page(request)
    opened = carl.post(f"{path}/open").text
    closed = ShownRequest(request, service.host.redactor).digest
    told = [
        carl.post(f"{path}/approve"),
        carl.post(f"{path}/approve", digest="0" * 64),
        carl.post(f"{path}/approve", digest=closed),
        carl.post(f"{path}/grant", digest=closed, seconds="60", scope="exact"),
    ]

    assert 'name="digest"' not in unseen and SECRET not in unseen
    assert [each.status_code for each in told] == [409] * 4
    assert not call.done()
    done = carl.post(f"{path}/approve", digest=carl.digest(request, opened))
    assert done.status_code == 303
    assert call.result(timeout=60).status == "ok"


def test_the_words_of_a_tool_are_text_and_counted_as_seen(
    service: Service, anna: Browser
) -> None:
    words = "<img src=x onerror=hacked=1>\u202e"
    request, call = service.asked(to=words, note=f"token={SECRET}")
    carl, path = Client(service), f"/approvals/{request.id}"
    anna.open(f"{service.url}{path}")
    shown = anna.find("pre.preview").get_attribute("textContent") or ""
    opened = carl.post(f"{path}/open").text
    service.deny(request)

    assert shown.startswith("1 to <img src=x onerror=hacked=1>\\u{202e}\n")
    assert SECRET not in shown
    assert opened.count(SECRET) == 4
    assert anna.script("return window.hacked") is None
    assert call.result(timeout=60).status == "denied"


def test_the_words_of_a_tool_count_in_digest_and_length(service: Service) -> None:
    request, _ = service.asked(to="words")
    sources = sources_of(service.host)
    others = [replace(request, preview=text) for text in ("other", "x" * 4_001)]
    seen, other, long = (
        service.portal.call(show_request, sources, each) for each in (request, *others)
    )
    service.deny(request)

    assert len({seen.digest, other.digest, long.digest}) == 3
    assert (seen.is_long, other.is_long, long.is_long) == (False, False, True)


@pytest.mark.promise("R1")
def test_many_empty_arguments_are_long(service: Service) -> None:
    request, _ = service.asked(to="many")
    many = {f"n{number}": "" for number in range(50)}
    wide = replace(request, call=request.call.model_copy(update={"arguments": many}))
    found = service.portal.call(show_request, sources_of(service.host), wide)
    service.deny(request)

    assert found.is_long


def test_an_approval_names_the_request_that_was_seen(service: Service) -> None:
    one, first = service.asked(to="one")
    other, second = service.asked(to="other")
    carl = Client(service)
    digest = carl.digest(one)

    wrong = carl.post(f"/approvals/{other.id}/approve", digest=digest)
    right = carl.post(f"/approvals/{one.id}/approve", digest=digest)
    again = carl.post(f"/approvals/{one.id}/approve", digest=digest)
    carl.post(f"/approvals/{other.id}/deny")

    assert wrong.status_code == 409 and "not the request that you saw" in wrong.text
    assert (right.status_code, first.result(timeout=60).status) == (303, "ok")
    assert again.status_code == 409 and "carl has approved" in again.text
    assert second.result(timeout=60).status == "denied"


@pytest.mark.parametrize(
    ("role", "agents"), [("viewer", None), ("approver", ("buyer",)), ("admin", ())]
)
def test_a_person_answers_for_agents_of_theirs(
    service: Service, role: Role, agents: tuple[str, ...] | None
) -> None:
    request, call = service.asked(to=f"nobody {role}")
    client, path = Client(service, role, agents), f"/approvals/{request.id}"
    page = client.page(request)
    acts = ("approve", "deny", "open", "grant", "edit", "edited")
    told = [client.post(f"{path}/{act}", arguments="{}").status_code for act in acts]

    assert "nobody" in page and "/deny" not in page
    assert told == [403] * 6
    assert not call.done()
    Client(service).post(f"{path}/deny")


def test_grants_are_short_narrow_and_revoked(service: Service, anna: Browser) -> None:
    request, call = service.asked(to="kiosk", sum=3)
    script, _ = service.asked("run_script", script="rm -r /")
    carl, path = Client(service), f"/approvals/{request.id}/grant"
    digest = carl.digest(request)
    long = carl.post(path, digest=digest, seconds="28800", scope="exact")
    wide = carl.post(
        f"/approvals/{script.id}/grant",
        digest=carl.digest(script),
        seconds="600",
        scope="some",
    )
    odd = carl.post(path, digest=digest, seconds="nan", scope="exact")
    done = carl.post(path, digest=digest, seconds="600", scope="some", same="to")
    granted = service.call(to="kiosk", sum=5).result(timeout=60)
    anna.open(service.url)
    anna.press("Revoke")
    anna.reads("None: each call")
    asked, _ = service.asked(to="kiosk", sum=5)
    for denied in (asked, script):
        carl.post(f"/approvals/{denied.id}/deny")

    told = [each.status_code for each in (long, wide, odd, done)]
    assert told == [403, 409, 409, 303]
    assert (call.result(timeout=60).status, granted.status) == ("ok", "ok")


def test_acts_that_matter_take_a_fresh_touch(tmp_path: Path) -> None:
    now = [time()]
    with served(tmp_path, clock=lambda: now[0]) as service, browser() as page:
        page.join(service.link(), "anna")
        request, call = service.asked(to="bank", note=f"token={SECRET}")
        carl = Client(service, "admin")
        now[0] += 301
        page.open(f"{service.url}/approvals/{request.id}")
        stale = carl.post(f"/approvals/{request.id}/open")
        forged = carl.post(f"/approvals/{request.id}/open", proof="{}")
        now[0] += 300
        page.open(f"{service.url}/approvals/{request.id}")
        page.press("Open the hidden parts")
        page.reads(SECRET)
        page.press("Approve once")
        page.reads("anna approved this call")

        assert call.result(timeout=60).status == "ok"
    assert (stale.status_code, forged.status_code) == (403, 409)
    assert SECRET not in stale.text + forged.text


def test_pages_work_without_scripts(service: Service, anna: Browser) -> None:
    request, call = service.asked(to="plain page")
    anna.open(service.url)
    anna.allow_scripts(False)
    try:
        anna.open(service.url)
        anna.open_call(request.id)
        anna.press("Approve once", f"form[contains(@action, '{request.id}')]")
        anna.reads("anna approved this call")
    finally:
        anna.allow_scripts(True)

    assert call.result(timeout=60).status == "ok"


def test_a_button_waits_for_the_eye(service: Service, anna: Browser) -> None:
    request, _ = service.asked(to="hasty")
    # Whoever lost against another person has a 409 in the log.
    anna.complaints()
    anna.open(f"{service.url}/approvals/{request.id}")
    at_once = anna.script("return window.guarded")
    anna.can_press(f"#approve-{request.id}")
    Client(service).post(f"/approvals/{request.id}/deny")

    assert at_once == {"buttons": 3, "dead": 3}
    assert anna.complaints() == []


def test_long_arguments_have_no_button_in_the_list(
    service: Service, anna: Browser
) -> None:
    request, _ = service.asked(to="long", note="x" * 5_000)
    anna.open(service.url)
    in_list = anna.all(f"#approve-{request.id}")
    anna.open(f"{service.url}/approvals/{request.id}")
    whole = "x" * 5_000 in anna.text
    Client(service).post(f"/approvals/{request.id}/deny")

    assert (in_list, whole) == ([], True)


def test_a_request_that_is_unknown_is_told(service: Service) -> None:
    carl = Client(service)

    assert carl.get("/approvals/none").status_code == 404
    assert carl.post("/approvals/none/approve").status_code == 404
    assert carl.post("/grants/none/revoke").status_code == 404


@pytest.mark.promise("D5")
def test_every_page_tells_how_many_calls_wait(service: Service, anna: Browser) -> None:
    before = len(service.waiting())
    anna.open(f"{service.url}/health")
    request, _ = service.asked(to="somebody")
    anna.until(lambda: anna.driver.title == f"({before + 1}) Health · toolcell")
    told = anna.find("nav a[href='/']").text
    service.deny(request)
    rest = f"({before}) " if before else ""
    anna.until(lambda: anna.driver.title == f"{rest}Health · toolcell")

    assert told.split()[:2] == ["Inbox", str(before + 1)]
    assert anna.driver.current_url.endswith("/health")


@pytest.mark.promise("D5")
def test_the_count_leaves_a_page_that_answers_a_form(
    service: Service, anna: Browser
) -> None:
    """It is asked for apart: to read the page again would lose what the form did."""
    anna.open(f"{service.url}/policies")
    anna.write("[name=agent]", "builder")
    anna.write("[name=tool]", "pay")
    anna.write("[name=arguments]", '{"to": "shop"}')
    anna.send("Explain")
    before = len(service.waiting())
    request, _ = service.asked(to="somebody else")
    anna.until(lambda: anna.driver.title.startswith(f"({before + 1}) "))
    service.deny(request)

    assert anna.driver.current_url.endswith("/explain")
    assert "builder calls pay" in anna.text
