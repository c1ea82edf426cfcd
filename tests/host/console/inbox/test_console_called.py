"""A person is called: the list of the inbox, its keys, and notifications."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from selenium.webdriver import Keys

from toolcell.core import ToolResult
from toolcell.guard import ApprovalRequest
from toolcell.tools import RunContext

from ....support.console.browser import Browser
from ....support.console.layout import PHONE, on_screen
from ....support.console.person import Client
from ....support.console.served import Service

Asked = list[tuple[ApprovalRequest, Future[ToolResult]]]
_BELL = """
window.told = [];
window.Notification = class {
  static permission = "default";
  static requestPermission = async () => (Notification.permission = "granted");
  constructor(title, options) { window.told.push(options.body); }
};
const planned = window.setInterval;
window.setInterval = (act, pause) => {
  if (pause < 30_000) return planned(act, pause);
  window.look = act;
};
"""
_HIDE = """
Object.defineProperty(document, "hidden", { get: () => true });
document.dispatchEvent(new Event("visibilitychange"));
"""


@pytest.fixture
def five(service: Service) -> Iterator[Asked]:
    """Five calls that wait, and nothing else."""
    for request in service.waiting():
        service.deny(request)
    made = [service.asked(to=f"shop {number}") for number in range(5)]
    yield made
    for request in service.waiting():
        service.deny(request)


def opened(page: Browser) -> Any:
    """Return the ids of the cards that are open."""
    return page.script(
        "return [...document.querySelectorAll('details.call[open]')]"
        "  .map((each) => each.id)"
    )


def tops(page: Browser, *elements: str) -> Any:
    """Return how far each element is from the top of the screen, at one moment."""
    return page.script(
        "return [...arguments].map((each) =>"
        "  document.querySelector(each).getBoundingClientRect().top)",
        *elements,
    )


def test_the_second_of_five_takes_two_taps(
    service: Service, anna: Browser, five: Asked
) -> None:
    request, call = five[1]
    with on_screen(anna, PHONE):
        anna.open(service.url)
        assert opened(anna) == [f"call-{five[0][0].id}"]
        anna.click(f"#line-{request.id}")
        [top] = tops(anna, f"#approve-{request.id}")
        assert 0 < top < anna.script("return innerHeight")
        anna.click(f"#approve-{request.id}")
        anna.reads("anna approved this call")

    assert call.result(timeout=60).content == "paid 1 to shop 1"
    assert not five[0][1].done()


def test_a_card_that_opens_shows_its_head(service: Service, anna: Browser) -> None:
    lines = "a line\n" * 15
    _, second = [service.asked(to="shop", sum=sum_, note=lines) for sum_ in (1, 2)]
    with on_screen(anna, PHONE):
        anna.open(service.url)
        anna.click(f"#line-{second[0].id}")
        [top] = anna.until(
            lambda: [at for at in tops(anna, f"#call-{second[0].id}") if at > -1]
        )

        assert top < anna.script("return innerHeight / 2")
        anna.click(f"#approve-{second[0].id}")
        anna.reads("anna approved this call")
        anna.click("#next")
        anna.until(lambda: anna.find("h1").text == "Inbox")


@pytest.mark.promise("D6")
def test_the_answers_come_before_what_they_are_about(
    service: Service, anna: Browser, five: Asked
) -> None:
    anna.open(service.url)
    call = f"#call-{five[0][0].id}"
    approve, arguments = tops(anna, f"{call} .answers", f"{call} dl.arguments")

    assert approve < arguments
    assert not anna.find(f"#reason-{five[0][0].id}").is_displayed()


@pytest.mark.promise("D6")
def test_keys_lead_through_the_inbox(
    service: Service, anna: Browser, five: Asked
) -> None:
    """They open and focus; nothing is answered but by Enter."""
    ids = [f"call-{request.id}" for request, _ in five]
    anna.open(service.url)
    seen = [opened(anna)]
    for key in ("j", "j", "k", "k", "k"):
        anna.key(key)
        seen.append(opened(anna))
    anna.key("?")
    anna.until(lambda: anna.find("#keys").is_displayed())
    anna.key(Keys.ESCAPE)
    anna.key("j")
    anna.key("d")
    anna.key("no")
    anna.key("j")
    field = anna.find(f"#reason-{five[1][0].id}").get_attribute("value")
    assert not any(call.done() for _, call in five)
    anna.can_press(f"#deny-{five[1][0].id}")
    anna.key(Keys.ENTER)
    anna.reads("anna denied this call. Reason: noj")
    anna.open(service.url)
    anna.can_press(f"#approve-{five[0][0].id}")
    anna.key("a")
    anna.key(Keys.ENTER)
    anna.reads("anna approved this call")

    assert seen == [[ids[at]] for at in (0, 1, 2, 1, 0, 0)]
    assert field == "noj"
    assert five[0][1].result(timeout=60).status == "ok"
    assert [call.done() for _, call in five[2:]] == [False] * 3


def test_a_card_that_opens_waits_for_the_eye(
    service: Service, anna: Browser, five: Asked
) -> None:
    anna.open(service.url)
    anna.waits_for_buttons()
    dead = anna.script(
        "const card = document.getElementById(arguments[0]); card.open = true;"
        "return new Promise((done) => card.addEventListener('toggle', () =>"
        "  done(card.querySelector('[data-guard]').ariaDisabled)));",
        f"call-{five[1][0].id}",
    )

    assert dead == "true"


@pytest.mark.promise("JA6")
def test_a_call_that_nobody_waits_for_stands_below(
    service: Service, anna: Browser, five: Asked
) -> None:
    async def give_up() -> ToolResult:
        run = RunContext(run_id="gives up", approval_seconds=0.01)
        arguments = {"to": "nobody"}
        return await service.host.call("pay", arguments, agent_id="builder", run=run)

    assert service.portal.call(give_up).status == "denied"
    [gone] = [each for each in service.waiting() if each.run_id == "gives up"]
    anna.open(service.url)
    last, title, below = tops(
        anna, f"#call-{five[-1][0].id}", "#given-up", f"#call-{gone.id}"
    )

    assert anna.driver.title.startswith("(5) Inbox")
    assert last < title < below
    # The same call finds the answer that comes late.
    carl = Client(service)
    carl.post(f"/approvals/{gone.id}/approve", digest=carl.digest(gone))
    assert service.portal.call(give_up).content == "paid 1 to nobody"


@pytest.mark.promise("JA6")
def test_an_open_page_sees_that_a_call_gives_up(
    service: Service, anna: Browser, five: Asked
) -> None:
    request = five[0][0]
    anna.open(service.url)
    store = service.host.approvals._workflow.store
    store.leave(request, request.asked_at)
    anna.script(
        "document.querySelector(arguments[0]).dataset.left = 0.5",
        f"#line-{request.id} [data-left]",
    )
    anna.reads("Nobody waits for these any more")


def test_a_hidden_page_calls_its_person(
    service: Service, anna: Browser, five: Asked
) -> None:
    script = anna.driver.execute_cdp_cmd(
        "Page.addScriptToEvaluateOnNewDocument", {"source": _BELL}
    )
    try:
        anna.open(service.url)
        anna.click("#notify")
        anna.until(lambda: anna.script("return window.told.length"))
        anna.script(_HIDE)
        service.asked(to="one more")
        # The answer to the last question of a page that is not hidden.
        anna.script("document.title = '(6) Inbox'; window.look()")
        anna.until(lambda: len(anna.script("return window.told")) > 1)
        told = anna.script("return window.told")
        asks_again = anna.find("#notify").is_displayed()
    finally:
        anna.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)

    assert told == ["Calls that wait are told here.", "6 calls wait for you."]
    assert not asks_again
    assert anna.complaints() == []
