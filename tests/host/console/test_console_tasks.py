"""Ten tasks of a day on a desk and on a telephone: docs say what each takes."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import anyio
import pytest
from selenium.webdriver.common.by import By

from toolcell.host.operator.live_calls import LiveCall
from toolcell.tools import ToolExecutionRecord, tool

from ...support.console.browser import Browser
from ...support.console.layout import DESK, PHONE, on_screen
from ...support.console.served import Service, runs_programs, served
from ...support.paths import ROOT
from ...support.polling import until

MORE = f"""{runs_programs("analyst", seconds=3600)}
[[policies]]
agent_id = "waiter"
allow = ["hold"]
"""
YESTERDAY = datetime.now(UTC) - timedelta(days=1)


class Hand:
    """The hand of a person, which begins at the inbox and counts what it presses."""

    def __init__(self, page: Browser, url: str) -> None:
        self.page = page
        self.presses = 0
        page.open(url)

    def tap(self, css: str) -> None:
        self.page.click(css)
        self.presses += 1

    def press(self, text: str) -> None:
        self.page.press(text)
        self.presses += 1

    def write(self, css: str, text: str) -> None:
        """Tap on a field, and write."""
        self.page.write(css, text)
        self.presses += 1

    def go(self, title: str) -> None:
        """Go to a page, by the menu where there is one."""
        [has_menu] = self.page.until(lambda: [self.page.find(".menu").is_displayed()])
        if has_menu:
            self.tap(".menu")
        self.tap(f"nav a[href='/{title.lower()}']")
        self.arrives(title)

    def arrives(self, title: str) -> None:
        """Wait until a page is there."""
        self.page.until(lambda: self.page.find("h1").text.startswith(title))


Task = Callable[[Hand, Service], None]
TASKS: dict[str, Task] = {}


def task(words: str) -> Callable[[Task], Task]:
    def add(do: Task) -> Task:
        TASKS[words] = do
        return do

    return add


@task("approve the second of five calls")
def approve(hand: Hand, service: Service) -> None:
    request = service.waiting()[1]
    hand.tap(f"#line-{request.id}")
    hand.tap(f"#approve-{request.id}")
    hand.page.reads("anna approved this call")


@task("deny a call, and say why")
def deny(hand: Hand, service: Service) -> None:
    request = service.waiting()[0]
    hand.tap(f"#why-{request.id}")
    hand.write(f"#reason-{request.id}", "no such shop")
    hand.tap(f"#deny-{request.id}")
    hand.page.reads("Reason: no such shop")


@task("find yesterday's run of one agent that ran out of memory")
def find(hand: Hand, service: Service) -> None:
    [wanted] = service.host.executor.records.page(
        agent_id="analyst", status="out_of_memory"
    )
    hand.go("Runs")
    hand.tap("a[href='/runs?status=failed']")
    hand.page.until(lambda: "status=failed" in hand.page.driver.current_url)
    row = [f"//tr[.//a[@href='/runs/{wanted.number}']]"]
    row += [f"[contains(., '{each}')]" for each in ("analyst", "out_of_memory")]
    hand.page.until(lambda: hand.page.driver.find_element(By.XPATH, "".join(row)))
    hand.page.reads(f"{YESTERDAY:%A, %Y-%m-%d}")
    hand.tap(f"a[href='/runs/{wanted.number}']")
    hand.page.reads("MemoryError")


@task("read why a call was refused")
def read_why(hand: Hand, service: Service) -> None:
    [refused] = service.host.executor.records.page(status="denied", limit=1)
    hand.go("Runs")
    hand.tap(f"a[href='/runs/{refused.number}']")
    hand.tap(f"a[href='/runs/{refused.number}/why']")
    hand.page.reads("Rule or limit")


@task("end a call that runs")
def end_call(hand: Hand, service: Service) -> None:
    call = service.call("hold", "waiter")
    service.portal.call(until, lambda: bool(held(service)))
    [live] = held(service)
    hand.go("Runs")
    hand.tap(f"#end-{live.number}")
    assert call.result(timeout=60).status == "cancelled"


@task("close a session")
def close(hand: Hand, service: Service) -> None:
    made = service.call("run_python", "analyst", session=uuid.uuid4().hex, code="x = 1")
    assert made.result(timeout=60).status == "ok"
    hand.go("Sessions")
    hand.tap("button[id^=close-]")
    hand.page.reads("No session of code is open.")


@task("see what an agent has left of its budget")
def see_budget(hand: Hand, service: Service) -> None:
    hand.go("Agents")
    hand.tap("a[href='/agents/builder']")
    hand.page.reads("usd/day")


@task("ask what would be decided about a call")
def ask(hand: Hand, service: Service) -> None:
    hand.go("Policies")
    hand.write("[name=agent]", "builder")
    hand.write("[name=tool]", "pay")
    hand.write("[name=arguments]", '{"to": "shop"}')
    hand.press("Explain")
    hand.page.reads("builder calls pay")


@task("have the audit log checked")
def check(hand: Hand, service: Service) -> None:
    hand.go("Audit")
    hand.press("Check it now")
    hand.page.until(lambda: "The log verifies" in seen_anew(hand.page))


@task("invite a person")
def invite(hand: Hand, service: Service) -> None:
    hand.go("People")
    hand.write("[name=name]", f"carla-{uuid.uuid4().hex[:6]}")
    hand.press("Make a link")
    hand.page.find("#invitation")


def held(service: Service) -> list[LiveCall]:
    """Return the calls that run and can be ended."""
    live = service.host.live_calls.all()
    return [each for each in live if each.tool == "hold" and each.stop]


def seen_anew(page: Browser) -> str:
    """Return the text of the page; one that asks to look again is read again."""
    for link in page.all("p[role=status] a"):
        link.click()
    return page.text


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A console of a day after another: 40 calls, and some that failed."""

    @tool
    async def hold() -> None:
        """Wait."""
        await anyio.sleep_forever()

    with served(tmp_path_factory.mktemp("console"), MORE) as made:
        made.host.registry.register(hold)
        for number in range(40):
            kept(made, number, agent_id=("analyst", "builder")[number % 2])
        ends = ("timeout", "out_of_memory", "error", "cpu_limit")
        for number, status in enumerate(ends, start=40):
            kept(made, number, result={"status": status, "traceback": "MemoryError"})
        other = {"status": "out_of_memory"}
        kept(made, 44, agent_id="builder", result=other, started_at=datetime.now(UTC))
        made.call("pay", to="thief").result(timeout=60)
        yield made


def kept(service: Service, number: int, **changes: object) -> None:
    """Have a record of yesterday."""
    fields = {
        "call_id": f"c{number}",
        "tool_name": "run_python",
        "agent_id": "analyst",
        "parent_id": None,
        "tool_version": "1",
        "arguments": {"code": f"chart({number})"},
        "verdict": "allowed",
        "status": "ok",
        "result": {"status": "ok"},
        "started_at": YESTERDAY,
        "duration_ms": 12.0,
    }
    service.host.executor.records.add(ToolExecutionRecord(**{**fields, **changes}))  # type: ignore[arg-type]


@pytest.fixture
def five(service: Service) -> Iterator[None]:
    """Five calls that wait, and nothing else."""
    for number in range(5):
        service.asked(to=f"shop {number}")
    yield
    for request in service.waiting():
        service.deny(request)


def promised(words: str) -> tuple[int, int]:
    """Return the presses of a task, on a desk and on a telephone, as the docs say."""
    [found] = re.findall(
        rf"^\| {re.escape(words)} \| (\d+) \| (\d+) \|$",
        (ROOT / "docs" / "console.md").read_text(),
        re.MULTILINE,
    )
    return int(found[0]), int(found[1])


@pytest.mark.parametrize("words", TASKS)
@pytest.mark.parametrize("width", [DESK, PHONE])
def test_a_task_takes_as_many_presses_as_the_docs_say(
    service: Service, anna: Browser, five: None, width: int, words: str
) -> None:
    with on_screen(anna, width):
        hand = Hand(anna, service.url)
        TASKS[words](hand, service)

    assert hand.presses == promised(words)[width == PHONE]


def test_the_most_frequent_tasks_are_short() -> None:
    assert max(promised("approve the second of five calls")) <= 3
    memory = "find yesterday's run of one agent that ran out of memory"
    assert max(promised(memory)) <= 4
