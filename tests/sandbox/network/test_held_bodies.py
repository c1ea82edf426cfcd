"""Bodies that wait for a person: bounded, shown, and sent as they were shown."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

import anyio
import h11
import pytest

from toolcell.sandbox import Limits, Network, SandboxSession
from toolcell.sandbox.cell.wire.contract import WINDOW_BYTES
from toolcell.sandbox.network import held_body, http_request
from toolcell.sandbox.network.attempt import Attempt
from toolcell.sandbox.network.egress import Egress
from toolcell.sandbox.network.held_body import HeldBody, Share
from toolcell.sandbox.network.http_request import (
    HTTPRequest,
    new_reader,
    new_writer,
    read_head,
)
from toolcell.sandbox.network.stream import CellStream
from toolcell.sandbox.network.types import EgressError

from ...support.cells.gates import Gate
from ...support.cells.web_server import (
    NAME,
    Site,
    serving,
)
from ...support.web.loop_steps import calls_in_steps

pytestmark = [pytest.mark.anyio, pytest.mark.promise("boundary-9")]

SIZE = 2_000_000
BODY = b"0123456789" * (SIZE // 10)
SEND = """
import os, socket, ssl, sys, urllib.error, urllib.request
url, size = sys.argv[1], int(sys.argv[2])
body = b"0123456789" * (size // 10)
def post(body, **headers):
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    request = urllib.request.Request(url + "/pay", body, named)
    try:
        return urllib.request.urlopen(request).read().decode()
    except urllib.error.HTTPError as error:
        named = error.headers
        return f"{error.code} {named['X-Toolcell-Refusal']} {named['Retry-After']}"
def by_hand(expects):
    to = url.partition("//")[2]
    host, _, door = os.environ["http_proxy"][7:].partition(":")
    way = socket.create_connection((host, int(door)), timeout=60)
    target = f"{url}/pay"
    if url.startswith("https"):
        way.sendall(f"CONNECT {to} HTTP/1.1\\r\\nHost: {to}\\r\\n\\r\\n".encode())
        said = b""
        while b"\\r\\n\\r\\n" not in said:
            said += way.recv(1)
        name = to.partition(":")[0]
        way = ssl.create_default_context().wrap_socket(way, server_hostname=name)
        target = "/pay"
    head = f"POST {target} HTTP/1.1|Host: {to}|Content-Length: {size}|{expects}|"
    way.sendall(head.replace("|", "\\r\\n").encode())
    return way
"""


@pytest.fixture(scope="module", params=["http", "https"])
def site(request: pytest.FixtureRequest, certificate: Path) -> Iterator[Site]:
    with serving(certificate if request.param == "https" else None) as running:
        yield running


@pytest.fixture(scope="module")
def network(site: Site, certificate: Path) -> Network:
    inspected = (f"{NAME}:{site.port}",) if site.certificate else ()
    return Network(
        mode="guarded",
        hosts=tuple(site.rules),
        inspect=inspected,
        server_ca=str(certificate) if inspected else None,
    )


async def said(cell: SandboxSession, code: str, site: Site, gate: Gate) -> list[str]:
    argv = ["python3", "-c", SEND + code, site.url, str(SIZE)]
    result = await (await cell.exec(argv, gate=gate)).wait()
    assert result.status == "ok", result.stderr
    assert not HeldBody._held
    return result.stdout.splitlines()


def holding() -> Gate:
    gate = Gate()
    gate.holds = True
    return gate


@pytest.mark.on_nodes
async def test_a_large_body_is_held_and_sent_as_it_came(
    cell: SandboxSession, site: Site
) -> None:
    gate = holding()
    code = """
way = by_hand("Expect: 100-continue|")
print(way.recv(100).split()[1].decode())
way.sendall(body)
said = b""
while b"\\r\\n\\r\\n" not in said or len(said.rpartition(b"\\r\\n\\r\\n")[2]) < 64:
    said += way.recv(65536)
print(said.count(b"HTTP/1.1"), said.rpartition(b"\\r\\n\\r\\n")[2].decode())
print(post(body))
"""
    digest = hashlib.sha256(BODY).hexdigest()

    assert await said(cell, code, site, gate) == ["100", f"1 {digest}", digest]
    assert [body["body_sha256"] for body in gate.bodies] == [digest] * 2
    assert [body["content_length"] for body in gate.bodies] == [SIZE] * 2
    assert len(site.hits) == 2


async def test_a_body_without_a_length_is_counted(
    cell: SandboxSession, site: Site
) -> None:
    gate = Gate(lambda act: False)
    gate.holds = True
    code = "print(post(iter([b'abc', b'', b'def'])))"

    assert await said(cell, code, site, gate) == ["403 not_allowed 7"]
    assert gate.bodies == [
        {
            "content_length": 6,
            "body_sha256": hashlib.sha256(b"abcdef").hexdigest(),
            "shown": "Body, as the program wrote it: 6 bytes, of which 6 are shown as "
            "text:\nabcdef",
        }
    ]
    assert site.hits == []


@pytest.mark.on_nodes
async def test_a_body_that_does_not_fit_is_refused_with_the_reason(
    cell: SandboxSession, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_body, "MAX_BODY_BYTES", SIZE - 1)
    monkeypatch.setattr(held_body, "MAX_HELD_BYTES", SIZE // 2)
    gate = holding()
    code = """
print(post(body))
print(post(iter([body])))
print(post(body[1:]))
print(post(b""))
"""
    full = f"403 approval_unavailable {held_body.RETRY_SECONDS}"
    nothing = hashlib.sha256(b"").hexdigest()
    assert await said(cell, code, site, gate) == [
        "403 approval_unavailable None",
        full,
        full,
        nothing,
    ]
    assert len(site.hits) == 1


@pytest.mark.on_nodes
async def test_a_body_that_breaks_off_is_not_sent(
    cell: SandboxSession, site: Site
) -> None:
    gate = holding()
    code = """
way = by_hand("")
way.sendall(body[:1000])
way.close()
print(post(b"after"))
"""
    assert await said(cell, code, site, gate) == [hashlib.sha256(b"after").hexdigest()]
    assert len(site.hits) == 1


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"a\tb\r\n", "5 bytes, of which 5 are shown as text:\na\tb\r\n"),
        (
            b"\x1b[2J\n",
            "5 bytes, of which 5 are shown in ASCII, others as dots:\n.[2J\n",
        ),
        ("\u202ea".encode(), "of which 4 are shown in ASCII, others as dots:\n...a"),
        (b"\xff" * 5_000, "5,000 bytes, of which 4,096 are shown in ASCII, others as"),
        ("\u00e9".encode() * 4_000, "8,000 bytes, of which 4,096 are shown as text"),
        (b"x" + "\u00e9".encode() * 4_000, "8,001 bytes, of which 4,096 are shown as"),
    ],
)
def test_people_see_the_beginning_of_a_body(data: bytes, shown: str) -> None:
    body = HeldBody(Share())
    for start in range(0, len(data), 100):
        body.add(data[start : start + 100])

    assert shown in body.shown
    assert body.facts["content_length"] == len(data)
    body.close()
    body.close()
    assert not HeldBody._held


def test_a_body_in_tiny_pieces_takes_the_room_that_is_counted() -> None:
    body = HeldBody(Share())
    for _ in range(70_000):
        body.add(b"ab")

    assert b"".join(body.pieces) == b"ab" * 70_000
    assert len(body.pieces) == 3
    body.close()
    assert not HeldBody._held


class Silent:
    """A program that sends nothing, and stays."""

    async def receive(self) -> bytes:
        await anyio.sleep_forever()
        return b""

    async def send(self, data: bytes) -> None:
        """Take it."""

    async def ended(self) -> None:
        await anyio.sleep_forever()


def a_run(agent_id: str | None = None) -> Egress:
    nothing = cast("Any", None)
    run = Egress(
        Network(mode="guarded"),
        Limits(),
        resolve=nothing,
        spawn=nothing,
        gate=holding(),
        agent_id=agent_id,
    )
    run.begin(nothing, nothing)
    return run


async def posted(
    run: Egress, size: int, body: bytes
) -> AbstractAsyncContextManager[None]:
    """Return the admission of a request of a run, of which some has come."""
    reader, program = new_reader(), Silent()
    told = f"POST /pay HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: {size}\r\n\r\n"
    head = await read_head(reader, program, told.encode() + body)
    attempt = Attempt(CellStream(1, cast("Any", None)), host=NAME, port=80)
    request = HTTPRequest(reader, head, "/pay", NAME, 80)
    return run.judged(attempt, request, program)


@pytest.fixture
def own_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep from later tests, which share the context, whose request waits here."""
    fresh = ContextVar("answering", default=None)
    monkeypatch.setattr("toolcell.sandbox.network.run_clock._answering", fresh)


@pytest.mark.usefixtures("own_context")
async def test_a_run_holds_no_more_than_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_body, "MAX_RUN_BYTES", 10)
    one, other = a_run(), a_run()
    async with await posted(one, 6, b"abcdef"), await posted(other, 6, b"abcdef"):
        with pytest.raises(EgressError, match="10 bytes of its run") as refused:
            await (await posted(one, 5, b"abcde")).__aenter__()
        assert refused.value.headers["Retry-After"] == str(held_body.RETRY_SECONDS)
    async with await posted(one, 10, b"0123456789"):
        assert HeldBody._held.total() == 10
    assert not HeldBody._held


@pytest.mark.usefixtures("own_context")
async def test_all_runs_of_an_agent_leave_room_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_body, "MAX_HELD_BYTES", 40)
    monkeypatch.setattr(held_body, "MAX_RUN_BYTES", 10)
    async with AsyncExitStack() as stack:

        async def post(agent_id: str, size: int) -> None:
            request = await posted(a_run(agent_id), size, bytes(size))
            await stack.enter_async_context(request)

        for _ in range(2):
            await post("greedy", 10)
        for _ in range(2):
            with pytest.raises(EgressError, match="20 bytes of its agent"):
                await post("greedy", 10)
        await post("other", 10)
        with pytest.raises(EgressError, match="5 bytes of its agent") as refused:
            await post("third", 10)
        assert refused.value.headers["Retry-After"] == str(held_body.RETRY_SECONDS)
        await post("third", 5)
    assert not HeldBody._held


@pytest.mark.usefixtures("own_context")
async def test_a_body_has_to_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_request, "MAX_READ_SECONDS", 0)
    with (
        anyio.fail_after(30),
        pytest.raises(EgressError, match="did not come within"),
    ):
        await (await posted(a_run(), 6, b"abc")).__aenter__()
    assert not HeldBody._held


@pytest.mark.parametrize("is_held", [True, False])
async def test_a_body_in_tiny_chunks_leaves_the_loop_to_others(is_held: bool) -> None:
    reader, program = new_reader(), Silent()
    told = f"POST /pay HTTP/1.1\r\nHost: {NAME}\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"1\r\nx\r\n" * 500 + b"0\r\n\r\n"
    head = await read_head(reader, program, told.encode() + body)
    request = HTTPRequest(reader, head, "/pay", NAME, 80)

    async def read() -> None:
        if is_held:
            (await request.hold(program, Share())).close()
        else:
            await request.make(new_writer(), program, program.send)

    with calls_in_steps(h11.Connection, "next_event") as counts:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
    assert sum(counts) > 500
    assert max(counts) < 50


@pytest.mark.parametrize(
    ("size", "told"), [(100, "went away before"), (WINDOW_BYTES, "sent 512 KiB more")]
)
async def test_a_withdrawn_request_says_why(size: int, told: str) -> None:
    async def send_frame(header: Any, payload: Any = b"") -> None:
        """Send nothing."""

    attempt = Attempt(CellStream(1, send_frame))
    attempt.stream.take("net_data", {}, bytes(size))
    attempt.withdraw()

    assert told in attempt.reason
