"""Every page for everybody: axe-core, the keyboard alone, 200 % zoom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import time

import anyio
import pytest
from selenium.webdriver import Keys

from toolcell.guard import Approve
from toolcell.host.console.routes import TABLE
from toolcell.host.console.web.visit import Page
from toolcell.tools import tool

from ...support.console.access import (
    prefer,
    serious,
    unreached,
    wider,
)
from ...support.console.browser import Browser, browser
from ...support.console.layout import DESK, PHONE, TABLET, on_screen, wrong_at
from ...support.console.served import SECRET, Service, runs_programs, served

NO_PAGES = {
    *("/events", "/login", "/login/options", "/runs/export", "/audit/export"),
    *("/oidc/begin", "/oidc/callback"),
}
PAGES = [
    each.path
    for each in TABLE
    if isinstance(each, Page) and "{" not in each.path and each.path not in NO_PAGES
]
EXAMPLES = [
    *("/runs/1", "/runs/1/why", "/runs/2", "/agents/builder", "/audit/1", "/tools/pay"),
    *(
        "/runs?agent=nobody",
        "/runs?text=m&since=noon",
        "/audit?before=3",
        "/agents/waiter",
    ),
]
"""Pages with parts in their addresses; record 2 is that of a program, 1 of its call."""

MORE = f"""{runs_programs("waiter", "hold", "note", seconds=3600)}
[[policies]]
agent_id = "the-assistant-of-the-department-for-procurement.eu-central-1"
allow = ["note"]
ask = ["pay"]
[console.oidc]
issuer = "https://login.example.com"
client_id = "toolcell"
[console.oidc.people.1]
name = "olga"
role = "approver"
agents = ["builder"]
"""

ZOOMED = 600
"""The pixels of a window of 1,200 at 200 %."""

NAME_OF_FOCUS = "return document.activeElement.id || document.activeElement.innerText"
OUTLINE_OF_FOCUS = "return getComputedStyle(document.activeElement).outlineStyle"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    begun, over = anyio.Event(), anyio.Event()

    @tool
    async def hold(text: str) -> None:
        """Wait."""
        begun.set()
        await over.wait()

    with served(tmp_path_factory.mktemp("console"), MORE) as made:
        made.host.registry.register(hold)
        for session, inner in (("idle", "note"), ("at work", "hold")):
            program = f"print('begun', flush=True)\ntools.{inner}(text='inside')"
            call = made.call("run_python", "waiter", session=session, code=program)
            if session == "idle":
                assert call.result(timeout=60).status == "ok"
        made.portal.call(begun.wait)
        yield made
        made.portal.call(over.set)


@pytest.fixture(scope="module")
def page(service: Service) -> Iterator[Browser]:
    """A browser whose person finds something on each page."""
    with browser() as started:
        started.join(service.link(), "anna")
        service.link("viewer", person_id="berta")
        answer_requests(service, started)
        service.asked(to="bank", note=f"token={SECRET}")
        service.asked("run_script", script="rm -r /\n")
        service.asked("run_script", script="x" * 5_000)
        service.asked(to="Пётр", agent="buyer")
        for person in ("berta", "anna"):
            several, _ = service.asked(to=f"{person}'s friend", agent="treasurer")
            reply = Approve(approver=person)
            service.portal.call(service.host.approvals.answer, several.id, reply)
        service.asked(to="W" * 300, agent=LONGEST)
        for name in ("note", "orders__list_all_line_items_of_the_last_business_year"):
            service.call(name, LONGEST, text="m" * 300).result(timeout=60)
        started.open(f"{service.url}/audit")
        started.send("Keep the present head")
        started.send("Check it now")
        started.open(f"{service.url}/health")
        started.send("Examine this machine")
        yield started


LONGEST = "the-assistant-of-the-department-for-procurement.eu-central-1"


def answer_requests(service: Service, page: Browser) -> None:
    """Have requests that were granted, denied and left to expire."""
    request, call = service.asked(to="shop", sum=40, note="Two boxes\nof paper")
    page.open(f"{service.url}/approvals/{request.id}")
    page.script("for (const d of document.querySelectorAll('details')) d.open = 1")
    page.press("Approve and grant")
    page.reads("approved this call")
    assert call.result(timeout=60).status == "ok"
    denied, _ = service.asked(to="casino")
    service.deny(denied)
    store = service.host.approvals._workflow.store
    expired = replace(denied, id="expired", expires_at=time() - 1)
    assert store.open(expired, max_pending=100, record=lambda: None)


def urls(service: Service) -> list[str]:
    """Return the addresses of all pages, with examples of those with parts."""
    shown = [f"/approvals/{each.id}" for each in service.waiting()]
    live = [f"/runs/live/{each.number}" for each in service.host.live_calls.all()]
    recent = service.portal.call(service.host.approvals.recent)
    answered = [f"/approvals/{each.request.id}" for each in recent[-3:]]
    return [*PAGES, *EXAMPLES, *live, *shown, *answered, "/nothing"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(
    service: Service, page: Browser, axe: str, scheme: str
) -> None:
    prefer(page, scheme)
    found = {}
    for url in urls(service):
        page.open(f"{service.url}{url}")
        found[url] = serious(page, axe)

    assert {url: each for url, each in found.items() if each} == {}
    assert len(found) > 4


@pytest.mark.full
@pytest.mark.parametrize("change", ["forced colours", "200 %"])
def test_axe_finds_nothing_serious_in_pages_that_a_person_changes(
    service: Service, page: Browser, axe: str, change: str
) -> None:
    found = {}
    for url in urls(service):
        page.open(f"{service.url}{url}")
        if change == "200 %":
            with on_screen(page, ZOOMED):
                found[url] = serious(page, axe)
        else:
            prefer(page, "active", "forced-colors")
            assert page.script("return matchMedia('(forced-colors: active)').matches")
            found[url] = serious(page, axe)
    prefer(page, "light")

    assert {url: each for url, each in found.items() if each} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_at_the_door(
    service: Service, axe: str, scheme: str
) -> None:
    used = f"{service.url}/join/none"
    with browser() as stranger:
        prefer(stranger, scheme)
        for url in (service.link("viewer"), f"{service.url}/login", used):
            stranger.open(url)
            assert serious(stranger, axe) == []
            assert wider(stranger, 320) == 0


def test_axe_finds_nothing_serious_in_what_an_act_shows(
    service: Service, page: Browser, axe: str
) -> None:
    """Pages that only a form leads to: an edit, and the answer to a question."""
    [request] = [each for each in service.waiting() if each.call.agent_id == "buyer"]
    page.open(f"{service.url}/approvals/{request.id}")
    page.script("for (const d of document.querySelectorAll('details')) d.open = true")
    page.send("See what is decided")
    assert "edited" in page.driver.title
    assert (serious(page, axe), wider(page, 600)) == ([], 0)
    page.open(f"{service.url}/policies")
    page.write("[name=agent]", "builder")
    page.write("[name=tool]", "pay")
    page.send("Explain")
    assert (serious(page, axe), wider(page, 600)) == ([], 0)
    page.open(f"{service.url}/people")
    page.write("[name=name]", "carla")
    page.send("Make a link")
    page.find("#invitation")
    assert (serious(page, axe), wider(page, 600)) == ([], 0)


def test_axe_finds_what_is_wrong(service: Service, page: Browser, axe: str) -> None:
    page.open(service.link("viewer"))
    page.script("document.querySelector('.main').textContent = ''")

    assert serious(page, axe)


def test_nothing_is_lost_at_200_percent(service: Service, page: Browser) -> None:
    """At 200 % a window of 1,200 pixels is 600 wide; 320 is that of a telephone."""
    wide = {}
    for url in urls(service):
        page.open(f"{service.url}{url}")
        wide[url] = [wider(page, width) for width in (600, 320)]

    assert {url: each for url, each in wide.items() if each != [0, 0]} == {}


@pytest.mark.parametrize("width", [PHONE, TABLET, DESK])
@pytest.mark.promise("D1")
@pytest.mark.promise("D12")
def test_every_page_fits_the_screen(
    service: Service, page: Browser, width: int
) -> None:
    """No word is cut, nothing is out of sight, and fingers meet what they touch."""
    wrong = {}
    for url in urls(service):
        page.open(f"{service.url}{url}")
        page.waits_for_buttons()
        wrong[url] = wrong_at(page, width)

    assert {url: each for url, each in wrong.items() if each} == {}


@pytest.mark.promise("D12")
def test_the_menu_of_a_telephone_leads_on(service: Service, page: Browser) -> None:
    """Also without scripts."""
    page.allow_scripts(False)
    try:
        page.open(f"{service.url}/health")
        with on_screen(page, PHONE):
            assert not page.find("nav a").is_displayed()
            page.click(".menu")
            page.click("nav a[href='/runs']")
            assert page.find("h1").text == "Runs"
    finally:
        page.allow_scripts(True)


def test_a_call_is_approved_by_the_keyboard_alone(
    service: Service, page: Browser
) -> None:
    request, call = service.asked(to="keys")
    page.open(service.url)
    target = f"approve-{request.id}"
    focused: list[str] = []
    for name in (f"line-{request.id}", target):
        while name not in focused and len(focused) < 200:
            page.key(Keys.TAB)
            focused.append(page.script(NAME_OF_FOCUS))
        if name != target and not page.all(f"#call-{request.id}[open]"):
            page.key(Keys.ENTER)
    outline = page.script(OUTLINE_OF_FOCUS)
    page.can_press(f"#{target}")
    while not call.done():
        page.key(Keys.ENTER)
    page.reads("anna approved this call")

    assert focused[0] == "To the content"
    assert outline == "solid"
    assert call.result(timeout=60).status == "ok"


def test_a_session_is_closed_by_the_keyboard_alone(
    service: Service, page: Browser
) -> None:
    page.open(f"{service.url}/sessions")
    target = page.all("button[id^=close-]")[0].get_attribute("id")
    focused: list[str] = []
    while target not in focused and len(focused) < 50:
        page.key(Keys.TAB)
        focused.append(page.script(NAME_OF_FOCUS))
    outline = page.script(OUTLINE_OF_FOCUS)
    page.can_press(f"#{target}")
    page.key(Keys.ENTER)
    page.reads("1 of at most 8")

    assert outline == "solid"


def test_the_keyboard_reaches_everything_and_shows_where_it_is(
    service: Service, page: Browser
) -> None:
    """Whatever is in a part that is replaced has an id too, and so keeps the focus."""
    found = {}
    for url in urls(service):
        page.open(f"{service.url}{url}")
        page.waits_for_buttons()
        found[url] = unreached(page)

    assert {url: each for url, each in found.items() if each} == {}


def test_nobody_complains(service: Service, page: Browser) -> None:
    # What the page before this one still loads is no page of this list.
    page.open("about:blank")
    page.complaints()
    found = []
    for url in urls(service)[:-1]:
        page.open(f"{service.url}{url}")
        found += page.complaints()

    assert found == []
