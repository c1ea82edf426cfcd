"""Pages of another origin, in the browser of a person who is signed in, do nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from ....support.console.browser import Browser
from ....support.console.served import Service

FORM = """
<form id="f" method="post" action="{url}/approvals/{id}/approve" {more}>
<input name="digest" value="{digest}"><input name="form_token" value="{token}"></form>
<script>f.submit()</script>
"""
FETCHES = """
const done = arguments[arguments.length - 1];
const [url, id, digest, token] = arguments;
const body = new URLSearchParams({ digest, form_token: token });
const acts = `${url}/approvals/${id}/approve`;
const tried = [
  fetch(acts, { method: "POST", body, credentials: "include" }),
  fetch(acts, { method: "POST", body, credentials: "include", mode: "no-cors" }),
  fetch(acts, { method: "POST", credentials: "include",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ digest }) }),
  fetch(url, { credentials: "include" }),
  fetch(`${url}/events`, { credentials: "include" }),
  fetch(url, { credentials: "include", mode: "no-cors" }).then((a) => a.text()),
  fetch(`${url}/static/console.js`, { mode: "no-cors" }).then((a) => a.text()),
  navigator.sendBeacon(acts, body) && Promise.resolve("sent"),
];
Promise.allSettled(tried).then((all) => done(all.map((each) =>
  each.status === "rejected" ? "rejected" : each.value.type || each.value)));
"""
FRAME = """
const done = arguments[arguments.length - 1];
const frame = document.createElement("iframe");
frame.src = arguments[0];
frame.onload = () => {
  let seen = "nothing";
  try { seen = frame.contentDocument.body.innerText; } catch { }
  done(seen);
};
document.body.append(frame);
"""
WINDOW = """
const done = arguments[arguments.length - 1];
const opened = window.open(arguments[0]);
let seen = "nothing";
const look = () => {
  try { seen = opened.document.body.innerText || seen; } catch { }
  if (opened.closed) done(seen);
  else setTimeout(look, 20);
};
look();
"""


class Pages(BaseHTTPRequestHandler):
    """A server of hostile pages."""

    page: ClassVar[str] = ""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(f"<!doctype html><body>{self.page}".encode())

    def log_message(self, *_: object) -> None:
        """Write no line for a request."""


@pytest.fixture(autouse=True)
def windows(anna: Browser) -> Iterator[None]:
    """Close what a test has opened, also where it fails."""
    own = anna.driver.current_window_handle
    yield
    anna.close_others(own)


@pytest.fixture(scope="module", params=["localhost", "evil.localhost", "127.0.0.1"])
def elsewhere(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of hostile pages: of the same site as the console, or of others."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://{request.param}:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def known(service: Service, anna: Browser) -> Iterator[dict[str, str]]:
    """All that a form of ours has, as if a hostile page had learned it."""
    request, _ = service.asked(to="evil")
    anna.open(f"{service.url}/approvals/{request.id}")
    values = {
        name: anna.find(f"input[name={name}]").get_attribute("value") or ""
        for name in ("digest", "form_token")
    }
    yield {
        "url": service.url,
        "id": request.id,
        "digest": values["digest"],
        "token": values["form_token"],
    }
    # Nobody else has answered it.
    service.deny(request)


@pytest.mark.parametrize("more", ["", 'enctype="text/plain"', 'target="_blank"'])
def test_a_form_elsewhere_does_nothing(
    service: Service,
    anna: Browser,
    elsewhere: str,
    known: dict[str, str],
    more: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    anna.open(elsewhere)
    monkeypatch.setattr(Pages, "page", FORM.format(**known, more=more))
    anna.open(elsewhere)
    if "_blank" in more:
        anna.until(lambda: len(anna.driver.window_handles) == 2)
        anna.driver.switch_to.window(anna.driver.window_handles[1])
    anna.reads("asked from another origin")

    assert known["id"] in {each.id for each in service.waiting()}


def test_fetches_from_elsewhere_read_and_do_nothing(
    service: Service, anna: Browser, elsewhere: str, known: dict[str, str]
) -> None:
    anna.open(elsewhere)
    found = anna.driver.execute_async_script(FETCHES, *known.values())

    assert found == [
        *("rejected", "rejected", "rejected", "rejected"),
        *("rejected", "rejected", "rejected", "sent"),
    ]
    assert known["id"] in {each.id for each in service.waiting()}


def test_no_page_elsewhere_frames_or_holds_ours(
    service: Service, anna: Browser, elsewhere: str
) -> None:
    anna.open(elsewhere)
    framed = anna.driver.execute_async_script(FRAME, service.url)
    held = anna.driver.execute_async_script(WINDOW, service.url)

    # Our window has left the group of its opener, to whom it looks closed.
    assert (framed, held) == ("nothing", "nothing")


def test_a_link_from_elsewhere_leads_in(
    service: Service, anna: Browser, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pages, "page", f"<a href='{service.url}/?x=1'>approve</a>")
    anna.open(elsewhere)
    anna.click("a")
    anna.until(lambda: "Inbox" in anna.driver.title)

    assert anna.driver.current_url == f"{service.url}/?x=1"
