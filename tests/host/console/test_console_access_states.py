"""States of pages that are seldom seen are for everybody, too: axe, keyboard, zoom."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx2
import pytest

from toolcell.host.console.accounts.sessions import MAX_FAILURES
from toolcell.host.console.pages.inbox import MAX_LISTED
from toolcell.tools import tool
from toolcell.tools.spi import MCPDefinition, MCPPins

from ...support.child import Child
from ...support.console.access import barriers
from ...support.console.browser import Browser, browser
from ...support.console.served import Service, runs_programs, served
from ...support.mcp.servers import definition
from ...support.toolcell_command import TOOLCELL

LONG = "read_" + "_".join(["very"] * 8) + "_long"
ALONE = """
[state]
folder = "state"
[[policies]]
agent_id = "builder"
allow = ["files__*"]
[tools.mcp.files]
command = "mcp-files"
[tools.mcp.nothing-approved]
command = "mcp-nothing"
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Browser]]:
    """A console in a process of its own, with pins and no audit log, and its admin."""
    folder = tmp_path_factory.mktemp("alone")
    path = folder / "toolcell.toml"
    path.write_text(ALONE)
    named = [MCPDefinition(**definition(each)) for each in ("read", "write", LONG)]
    MCPPins({"files": named}).save(folder / "mcp_pins.json")
    command = [TOOLCELL, "console", "--config", str(path)]
    command += ["--address", "127.0.0.1:0", "--json"]
    with (
        browser() as page,
        Child(command, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        page.join(told["link"], "anna")
        yield told["console"], page
        process.terminate()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/", "No call waits for a person."),
        ("/runs", "of other processes are not seen here"),
        ("/runs/live/1", "calls of another process are not seen here"),
        ("/sessions", "Sessions of other processes are not seen here"),
        ("/audit", "There is no audit log"),
        ("/audit/1", "there is no audit log"),
        ("/policies", "Approved definitions of MCP servers and APIs"),
        (f"/tools/files__{LONG}", f"Does {LONG}."),
        ("/agents", "builder"),
        ("/health", "Health"),
    ],
)
def test_a_console_alone_is_for_everybody(
    alone: tuple[str, Browser], axe: str, path: str, text: str
) -> None:
    url, page = alone
    page.open(f"{url}{path}")

    assert text in page.text
    assert barriers(page, axe) == {}


def test_approved_definitions_of_mcp_servers_are_opened_by_the_keyboard(
    alone: tuple[str, Browser],
) -> None:
    url, page = alone
    page.open(f"{url}/policies")
    for summary in page.all("[aria-labelledby=pins] summary"):
        summary.send_keys("\n")

    page.reads("read_very_very")
    page.reads("toolcell tools pin nothing-approved")


def test_an_inbox_with_more_than_it_lists_is_for_everybody(
    service: Service, anna: Browser, axe: str
) -> None:
    agents = ("builder", "buyer", "treasurer")
    for number in range(MAX_LISTED + 3):
        service.asked(to=f"shop {number}", agent=agents[number % 3])
    anna.open(service.url)

    assert len(anna.all("details.call")) == MAX_LISTED
    assert "3 more wait; they come as these are answered." in anna.text
    assert barriers(anna, axe) == {}


def test_an_act_that_is_not_recorded_is_told_to_everybody(
    tmp_path: Path, axe: str
) -> None:
    begun, over = anyio.Event(), anyio.Event()

    @tool
    async def hold() -> None:
        """Wait."""
        begun.set()
        await over.wait()

    more = "[tools]\ntimeout_seconds = 600\n"
    more += '[[policies]]\nagent_id = "waiter"\nallow = ["hold"]\n'
    with served(tmp_path, more) as made, browser() as page:
        made.host.registry.register(hold)
        page.join(made.link(), "anna")
        call = made.call("hold", "waiter")
        made.portal.call(begun.wait)
        [live] = made.host.live_calls.all()
        page.open(f"{made.url}/runs/live/{live.number}")
        (tmp_path / "audit.jsonl").unlink()
        page.send("End the call")

        assert page.find("h1").text == "Done, not recorded"
        assert barriers(page, axe) == {}
        page.find("main a").send_keys("\n")
        page.until(lambda: page.find("h1").text == "Runs")
        assert call.result(timeout=60).status == "cancelled"


WITH_CODE = runs_programs("coder")
SENDS = """
const [path, token] = arguments;
const form = document.createElement("form");
Object.assign(form, { method: "post", action: path });
form.append(Object.assign(document.createElement("input"),
  { type: "hidden", name: "form_token", value: token }));
document.body.append(form);
form.submit();
"""
TOKEN = "return document.querySelector('[name=form_token]')?.value ?? ''"


def sent(page: Browser, path: str) -> None:
    """Send a form that the page itself does not offer to its person."""
    page.script(SENDS, path, page.script(TOKEN))
    page.until(lambda: page.find("h1").text == "Not done")


def test_refusals_are_for_everybody(tmp_path: Path, axe: str) -> None:
    """Of pages that are not there (404), acts (401, 403, 409, 503), and tries (429)."""
    with served(tmp_path, WITH_CODE) as made, browser() as page:
        page.join(made.link("viewer"), "vera")
        for path in (
            "approvals/none",
            "runs/999",
            "runs/live/9",
            "runs/export?since=noon",
        ):
            page.open(f"{made.url}/{path}")
            assert page.find("h1").text == "Not done"
            assert barriers(page, axe) == {}, path
        page.open(f"{made.url}/audit")
        sent(page, "/audit/verify")
        page.reads("this takes the role operator")
        assert barriers(page, axe) == {}
        page.open(f"{made.url}/audit")
        page.driver.delete_all_cookies()
        sent(page, "/logout")
        page.reads("your session has ended")
        assert barriers(page, axe) == {}

        page.join(made.link(), "anna")
        page.open(f"{made.url}/audit")
        (tmp_path / "audit.jsonl").unlink()
        page.press("Keep the present head")
        page.until(lambda: page.find("h1").text == "Not done")
        assert barriers(page, axe) == {}
        for _ in range(MAX_FAILURES):
            httpx2.get(f"{made.url}/join/none", timeout=60)
        page.open(f"{made.url}/join/none")
        page.reads("too many attempts failed")
        assert barriers(page, axe) == {}


FAILING = (
    "def inner(x):\n    return x / 0\n\nprint('begun')\ninner(1)",
    "import time\nprint('x' * 500)\ntime.sleep(600)",
    "kept = b'1' * (600 << 20)",
    "import sklearn",
    "import sys\nprint('\\x1b[31mred\\x1b[0m', file=sys.stderr)\nsys.exit(3)",
)


def test_failed_runs_are_for_everybody(tmp_path: Path, axe: str) -> None:
    more = f"{WITH_CODE}[sandbox.limits]\nwall_seconds = 1\n"
    with served(tmp_path, more) as made, browser() as page:
        page.join(made.link(), "anna")
        for code in FAILING:
            call = made.call("run_python", "coder", code=code)
            assert call.result(timeout=60).status == "ok"
        made.call("pay", to="thief", note="x" * 3_000).result(timeout=60)
        made.call("run_python", "coder", program=1).result(timeout=60)
        records = made.host.executor.records.page()
        for record in records:
            for path in (f"/runs/{record.number}", f"/runs/{record.number}/why"):
                page.open(f"{made.url}{path}")
                assert barriers(page, axe) == {}, path
        page.open(f"{made.url}/runs?status=failed")
        assert barriers(page, axe) == {}

    assert {"error", "timeout", "exit"} <= {record.record.outcome for record in records}


def test_who_arrives_by_a_link_elsewhere_is_led_on(service: Service, axe: str) -> None:
    """The page between reloads at once, so axe looks at what the server sent of it."""
    elsewhere = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    elsewhere |= {"Sec-Fetch-Dest": "document"}
    sent = httpx2.get(f"{service.url}/runs", headers=elsewhere, timeout=60).text
    assert 'http-equiv="refresh" content="0; url=/login?next=/runs"' in sent
    with browser() as stranger:
        stranger.open(data_url(f'<a href="{service.url}/runs">the runs</a>'))
        stranger.click("a")
        stranger.until(lambda: "/login?next=/runs" in stranger.driver.current_url)
        assert "Sign in" in stranger.driver.title
        stranger.open(data_url(sent.replace('http-equiv="refresh"', "")))
        assert stranger.text == "Go on"
        assert barriers(stranger, axe) == {}


def data_url(page: str) -> str:
    encoded = base64.b64encode(page.encode()).decode()
    return f"data:text/html;charset=utf-8;base64,{encoded}"
