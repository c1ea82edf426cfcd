"""The largest text of each field of each door costs a moment, and a short refusal."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from ...support.console.served import served as served_console
from ...support.mcp.by_hand import META, request
from ...support.web.loop_steps import SECONDS, TRIES, steps
from .served_doors import BYTES, served

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.full,
    pytest.mark.namespaces,
    pytest.mark.promise("R2", "R41", "R53", "R66"),
]

PARTS = (
    "lorem ipsum, ",
    "日本",
    "\u0301\u0323",
    "\ufdfa",
    "a:",
    "a\n",
    "a.",
    "'",
    "token=abcdef ",
    "-eyJ",
    "7",
    "../",
    "\x01",
    "&lt;",
)
FIELD = "FIELD"
"""The place of the text in a request, as a value or as a name."""

HEAD_BYTES = 60_000
"""Bytes of a text in a head, of which a server reads 64 KiB."""

REFUSAL_BYTES = 4_096
LINE = 4_096
"""Characters of a line of the log."""

START = {"process": {"cmd": "ls"}}
CALL = request("take", {"value": 1})["json"]

Field = tuple[str, str, Any]
"""A method, a path, and a body with one field to fill."""


def call(**more: Any) -> dict[str, Any]:
    return {**CALL, **more}


def meta(**more: Any) -> dict[str, Any]:
    return call(params={**CALL["params"], "_meta": {**META, **more}})


def post(path: str, /, **bodies: Any) -> dict[str, Field]:
    return {f"{path} {name}": ("POST", path, body) for name, body in bodies.items()}


REST = {
    **post(
        "/v1/calls",
        tool={"tool": FIELD},
        id={"tool": "take", "id": FIELD},
        name={"tool": "take", "arguments": {FIELD: 1}},
    ),
    **post("/v1/approvals/x/deny", reason={"reason": FIELD}),
    **post("/v1/approvals/x/approve", edited={"arguments": {"a": FIELD}}),
}
MCP = post(
    "/mcp",
    method=call(method=FIELD),
    tool=call(params={**CALL["params"], "name": FIELD}),
    meta=meta(a=FIELD),
    capability=meta(**{"io.modelcontextprotocol/clientCapabilities": {FIELD: {}}}),
    uri=call(method="resources/read", params={"uri": FIELD, "_meta": META}),
    cursor=call(method="tools/list", params={"cursor": FIELD, "_meta": META}),
)
CONTROL = {
    **post(
        "/sandboxes",
        template={"templateID": FIELD},
        name={"metadata": {FIELD: "a"}},
        variable={"envVars": {FIELD: "a"}},
        host={"network": {"allowOut": [FIELD]}},
        denied={"network": {"denyOut": [FIELD]}},
        server={"mcp": {FIELD: "a"}},
    ),
    "snapshot": ("POST", "/sandboxes/ID/snapshots", {"name": FIELD}),
}
DAEMON = {
    **post(
        "/process.Process/Start",
        program={"process": {"cmd": FIELD}},
        script={"process": {"cmd": "/bin/bash", "args": ["-l", "-c", FIELD]}},
        argument={"process": {"cmd": "ls", "args": [FIELD]}},
        variable={"process": {"cmd": "ls", "envs": {"A": FIELD}}},
        folder={"process": {"cmd": "ls", "cwd": FIELD}},
        tag={**START, "tag": FIELD},
    ),
    **post("/process.Process/SendInput", stdin={"input": {"stdin": FIELD}}),
    **post("/filesystem.Filesystem/Stat", path={"path": FIELD}),
}
CODE = {
    **post(
        "/execute",
        code={"code": FIELD},
        language={"code": "1", "language": FIELD},
        context={"code": "1", "context_id": FIELD},
        variable={"code": "1", "env_vars": {"A": FIELD}},
    ),
}
QUERIES = [
    "/v1/records?text=",
    "/v1/records?tool=",
    "/v1/events?seconds=0&agent=",
    "/v1/calls/",
    "/v1/",
    "/sandboxes?metadata=a%3D",
    "/sandboxes?startedAfter=",
    "/sandboxes?nextToken=",
    "/sandboxes/",
]
HEADERS = [
    ("/v1/tools", "Authorization"),
    ("/v1/events?seconds=0", "Last-Event-ID"),
    ("/mcp", "Mcp-Session-Id"),
    ("/mcp", "Mcp-Name"),
    ("/mcp", "Origin"),
    ("/mcp", "Accept"),
    ("/sandboxes", "X-API-Key"),
    ("/sandboxes", "E2b-Sandbox-Id"),
    ("/files", "X-Access-Token"),
    ("/v1/tools", "Content-Type"),
    ("/v1/tools", "Cookie"),
]
FORMS = [
    ("/approvals/none/deny", "reason"),
    ("/explain", "agent"),
    ("/explain", "tool"),
    ("/explain", "arguments"),
    ("/people/invite", "name"),
    ("/people/anna/role", "whose=some&agents"),
    ("/people/passkeys", "proof"),
    ("/people/passkeys/remove", "key"),
]
STRANGERS_FORMS = [("/login", "proof"), ("/login", "next"), ("/join/none", "name")]
PAGES = ["/login?next=", "/runs?text=", "/audit?text=", "/runs/export?form=", "/join/"]


def texts(size: int) -> Iterator[str]:
    """Yield texts of so many bytes as JSON: one that grows, and some of everything."""
    yield filled(["\u200b'"], size)
    yield filled(PARTS, size)


def filled(parts: Sequence[str], size: int) -> str:
    each = size // len(parts)
    return "".join(part * (each // len(written(part)[1:-1])) for part in parts)


def written(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def with_text(form: Any, text: str) -> Any:
    """Return a form in which a text stands in the place of the field."""
    if isinstance(form, dict):
        return {with_text(n, text): with_text(v, text) for n, v in form.items()}
    if isinstance(form, list):
        return [with_text(each, text) for each in form]
    return text if form == FIELD else form


class Sent:
    """What was sent, and how long it held the loop and its refusal is, if too much."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http
        self.slow: dict[str, float] = {}
        self.long: dict[str, int] = {}

    async def send(self, label: str, method: str, url: str, **sent: Any) -> None:
        """Send a request until its longest step is short enough, or too often."""
        longest: list[float] = []
        while len(longest) < TRIES:
            with steps() as taken:
                answer = await self._http.request(method, url, **sent)
            longest.append(max(taken))
            if longest[-1] < SECONDS:
                break
        else:
            self.slow[label] = min(longest)
        if answer.is_error and len(answer.content) > REFUSAL_BYTES:
            self.long[label] = len(answer.content)


HEADERS_OF = {"mcp": request("take", {})["headers"]}
BODIES = {"rest": REST, "mcp": MCP, "control": CONTROL, "daemon": DAEMON, "code": CODE}


@asynccontextmanager
async def sandbox(http: httpx2.AsyncClient) -> AsyncIterator[dict[str, Any]]:
    made = (await http.post("/sandboxes", json={})).json()
    yield made
    await http.delete(f"/sandboxes/{made['sandboxID']}")


async def test_a_long_name_is_cut_in_a_refusal(tmp_path: Path) -> None:
    long: dict[str, int] = {}
    async with served(tmp_path) as http:
        for door in ("rest", "mcp", "control"):
            headers = HEADERS_OF.get(door)
            for label, (method, url, form) in BODIES[door].items():
                body = written(with_text(form, "\u200bx'" * 2_000))
                answer = await http.request(method, url, content=body, headers=headers)
                if answer.is_error:
                    long[label] = len(answer.content)
    assert max(long.values()) < REFUSAL_BYTES, long


@pytest.mark.parametrize("door", BODIES)
async def test_no_field_of_a_body_holds_the_loop(
    tmp_path: Path, door: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path, "d") as http, sandbox(http) as made:
        named = {
            "e2b-sandbox-id": made["sandboxID"],
            "x-access-token": made["envdAccessToken"],
        }
        headers = {
            **HEADERS_OF,
            "daemon": named,
            "code": {**named, "e2b-sandbox-port": "49999"},
        }.get(door, {})
        sent = Sent(http)
        for label, (method, path, form) in BODIES[door].items():
            url = path.replace("ID", made["sandboxID"])
            for text in texts(BYTES):
                body = written(with_text(form, text))
                if path.endswith("/Start"):
                    body = bytes([0]) + len(body).to_bytes(4, "big") + body
                await sent.send(label, method, url, content=body, headers=headers)
    assert (sent.slow, sent.long) == ({}, {})
    assert all(len(line.getMessage()) < LINE for line in caplog.records)


async def test_no_field_of_a_head_holds_the_loop(tmp_path: Path) -> None:
    async with served(tmp_path, "d") as http:
        sent = Sent(http)
        for text in texts(HEAD_BYTES // 9):
            for url in QUERIES:
                await sent.send(url, "GET", url + quote(text, safe=""))
        for text in texts(HEAD_BYTES // 2):
            value = text.replace("\n", " ").replace("\x01", " ").encode()
            for url, name in HEADERS:
                await sent.send(name, "GET", url, headers={name.encode(): value})
    assert (sent.slow, sent.long) == ({}, {})


async def test_no_field_of_the_console_holds_the_loop(tmp_path: Path) -> None:
    ours = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}
    with served_console(tmp_path) as service:
        cookies, token = service.signed_in()
        headers = {
            **ours,
            "Origin": service.url,
            "Content-Type": "application/x-www-form-urlencoded",
        }
        async with httpx2.AsyncClient(
            base_url=service.url, headers=headers, timeout=300
        ) as http:
            sent = Sent(http)
            for url, name in STRANGERS_FORMS:
                for text in texts(HEAD_BYTES // 9):
                    body = f"{name}={quote(text)}"
                    await sent.send(url, "POST", url, content=body)
            http.cookies.update(cookies)
            large = [quote(text) for text in texts(BYTES // 9)] + ["'" * BYTES]
            for url, name in FORMS:
                for text in large:
                    body = f"form_token={token}&{name}={text}"
                    await sent.send(f"{url} {name}", "POST", url, content=body)
            for url in PAGES:
                for text in texts(HEAD_BYTES // 9):
                    await sent.send(url, "GET", url + quote(text, safe=""))
    assert (sent.slow, sent.long) == ({}, {})
