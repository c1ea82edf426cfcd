"""The gate: no page of another origin can read or do anything."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Message

from toolcell.core.event_loop import LARGE, beside_loop
from toolcell.host.console.routes import TABLE
from toolcell.host.console.web.gate import Gate, cookie_name
from toolcell.host.console.web.visit import Action, Page

from ....support.console.served import Service, served
from ....support.polling import PATIENCE, until

OURS = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}
STRANGE = "https://evil.test"


@pytest.fixture
def http(service: Service) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=service.url, timeout=60) as client:
        yield client


def asked_by(service: Service, **headers: str) -> dict[str, str]:
    """Return the headers of a form of ours, with changes."""
    changes = {name.replace("_", "-"): value for name, value in headers.items()}
    return {**OURS, "Origin": service.url, **changes}


def test_every_page_and_act_declares_a_role() -> None:
    open_to_all = {each.path for each in TABLE if each.role is None}

    assert open_to_all == {
        *("/login", "/login/options", "/join/{code}"),
        *("/oidc/begin", "/oidc/callback"),
    }


@pytest.mark.parametrize("item", TABLE, ids=lambda each: f"{type(each)}{each.path}")
def test_nothing_is_shown_or_done_without_a_session(
    service: Service, http: httpx2.Client, item: Page | Action
) -> None:
    path = item.path.replace("{", "").replace("}", "")
    if item.role is None:
        return
    if isinstance(item, Page):
        seen = http.get(path)
        background = http.get(path, headers={"Sec-Fetch-Mode": "cors"})
        assert (seen.status_code, background.status_code) == (303, 401)
        assert seen.headers["location"].startswith("/login?next=/")
    else:
        assert (
            http.post(path, data={"a": "b"}, headers=asked_by(service)).status_code
            == 401
        )


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 303),
        ({"Host": "evil.test"}, 421),
        ({"Host": "127.0.0.1"}, 421),
        ({"Origin": STRANGE}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Sec_Fetch_Site": "none"}, 403),
        ({"Content_Type": "application/json"}, 415),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "multipart/form-data; boundary=x"}, 415),
    ],
)
@pytest.mark.promise("R11")
def test_an_act_comes_from_a_form_of_ours(
    service: Service, http: httpx2.Client, headers: dict[str, str], status: int
) -> None:
    cookie, token = service.signed_in()
    http.cookies.update(cookie)
    body = f"form_token={token}"
    sent = {"Content-Type": "application/x-www-form-urlencoded"}

    answer = http.post(
        "/logout", content=body, headers={**sent, **asked_by(service, **headers)}
    )

    assert answer.status_code == status
    secret = cookie[cookie_name(service.url)]
    assert (service.sessions.find(secret) is None) == (status == 303)


def test_an_act_without_an_origin_is_refused(
    service: Service, http: httpx2.Client
) -> None:
    cookie, token = service.signed_in()
    http.cookies.update(cookie)

    answer = http.post("/logout", data={"form_token": token}, headers=OURS)

    assert answer.status_code == 403


@pytest.mark.parametrize("token", ["", "0" * 64, None])
def test_a_form_carries_the_token_of_its_session(
    service: Service, http: httpx2.Client, token: str | None
) -> None:
    cookie, _ = service.signed_in()
    http.cookies.update(cookie)
    _, foreign = service.signed_in("berta")
    given = foreign if token is None else token

    answer = http.post("/logout", data={"form_token": given}, headers=asked_by(service))

    assert (answer.status_code, "another session" in answer.text) == (403, True)


@pytest.mark.parametrize(
    ("mode", "destination", "status"),
    [
        ("navigate", "document", 200),
        ("navigate", "iframe", 403),
        ("no-cors", "image", 403),
        ("cors", "empty", 403),
    ],
)
@pytest.mark.promise("R11")
def test_from_elsewhere_people_follow_links_alone(
    service: Service, http: httpx2.Client, mode: str, destination: str, status: int
) -> None:
    cookie, _ = service.signed_in()
    http.cookies.update(cookie)
    headers = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": mode,
        "Sec-Fetch-Dest": destination,
    }

    assert http.get("/", headers=headers).status_code == status


def test_other_methods_are_refused(service: Service, http: httpx2.Client) -> None:
    cookie, _ = service.signed_in()
    http.cookies.update(cookie)

    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        answer = http.request(method, "/", headers=asked_by(service))
        assert answer.status_code == 405


def test_a_phone_loads_little(http: httpx2.Client) -> None:
    files = [http.get(f"/static/console.{kind}") for kind in ("css", "js")]

    assert all(file.status_code == 200 for file in files)
    assert sum(len(file.content) for file in files) <= 50 << 10


@pytest.mark.parametrize(
    "path", ["/", "/login", "/nothing", "/static/console.js", "/join/x"]
)
@pytest.mark.promise("R11")
def test_every_answer_has_the_headers(
    service: Service, http: httpx2.Client, path: str
) -> None:
    cookie, _ = service.signed_in()
    http.cookies.update(cookie)
    answers = [
        http.get(path),
        httpx2.get(f"{service.url}{path}", timeout=60),
        http.get(path, headers={"Host": "evil.test"}),
    ]

    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"


def test_a_large_form_is_refused(tmp_path: Path) -> None:
    with served(tmp_path, "[server]\nmax_body_bytes = 2000\n") as service:
        answer = httpx2.post(
            f"{service.url}/login",
            data={"a": "b" * 2000},
            headers=asked_by(service),
            timeout=60,
        )

    assert answer.status_code == 413


@pytest.mark.parametrize(
    "body",
    [
        *("&".join("a=b" for _ in range(1001)), "a", "%ff=1", "a=%ff", "é=1"),
        *("a=1&&b=2", "=&=&="),
    ],
)
def test_a_form_that_cannot_be_read_is_refused(
    service: Service, http: httpx2.Client, body: str
) -> None:
    sent = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = http.post(
        "/login", content=body.encode(), headers={**sent, **asked_by(service)}
    )

    assert answer.status_code in (400, 403)


def test_a_body_in_pieces_is_counted(service: Service) -> None:
    host, port = "localhost", int(service.url.rpartition(":")[2])
    lines = [
        *("POST /login HTTP/1.1", f"Host: {host}:{port}", f"Origin: {service.url}"),
        *("Sec-Fetch-Site: same-origin", "Transfer-Encoding: chunked"),
        *("Content-Type: application/x-www-form-urlencoded", "", ""),
    ]
    piece = b"100000\r\n" + b"a" * 0x100000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as wire:
        wire.sendall("\r\n".join(lines).encode())
        wire.sendall(piece * 4)
        wire.sendall(b"1\r\na\r\n0\r\n\r\n")
        assert wire.recv(100).startswith(b"HTTP/1.1 413")


@pytest.mark.anyio
async def test_a_form_waits_for_no_agent_of_the_same_name() -> None:
    sessions: Any = SimpleNamespace(is_open=None)
    sender: Any = SimpleNamespace(person=SimpleNamespace(id="pat"))
    body = b"a=" + b"b" * LARGE
    headers = [(b"content-type", b"application/x-www-form-urlencoded")]

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
    gate = Gate(PlainTextResponse(), "http://localhost:1", sessions, 2 * LARGE)
    begun, go = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert go.wait(PATIENCE)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beside_loop, "pat", hold)
        try:
            await until(begun.is_set)
            with anyio.fail_after(PATIENCE / 2):
                form = await gate._read_form(request, sender)
        finally:
            go.set()
    assert not isinstance(form, Response) and dict(form) == {"a": "b" * LARGE}
