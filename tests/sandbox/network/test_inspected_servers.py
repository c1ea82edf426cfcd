"""Servers of inspected HTTPS that answer otherwise than they should, without cells."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import h11
import pytest

from toolcell.sandbox import Limits, Network
from toolcell.sandbox.config.credentials import Credential
from toolcell.sandbox.credentials.agents import Credentials
from toolcell.sandbox.network import stream as sockets
from toolcell.sandbox.network.attempt import Attempt
from toolcell.sandbox.network.authority import CertificateAuthority
from toolcell.sandbox.network.egress import Egress
from toolcell.sandbox.network.stream import CellStream
from toolcell.sandbox.network.tls import TLSStream
from toolcell.sandbox.network.types import EgressError

from ...support.cells.inspected_ends import (
    NAME,
    OTHER,
    THEIRS,
    Wire,
    all_of,
    answer,
    heard,
    inspected,
    request,
    until,
)
from ...support.web.loop_steps import calls_in_steps

pytestmark = pytest.mark.anyio

RECORD = 16_384
FRAMES = (b"content-length", b"transfer-encoding")
OK = "HTTP/1.1 200 OK\r\n"


@pytest.mark.promise("boundary-5")
async def test_an_answer_that_nobody_asked_for_is_not_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolcell.sandbox.network.tls.PIECE_BYTES", RECORD)

    async def serve(tls: TLSStream, wire: Wire) -> None:
        path = (await heard(tls)).split()[1]
        asked = answer(path + b"!")
        wire.held = b""
        # The first record is the answer to its last byte.
        await tls.send(answer(b"." * (2 * RECORD - len(asked) - 4) + path + b"!"))
        await tls.send(answer(b"smuggled!"))
        await sockets.send(wire.sock, wire.held)
        wire.held = None
        await tls.receive()

    async with inspected(serve) as (tls, carrier, _):
        for path in ("/first", "/second"):
            await tls.send(request(path))
            assert (await until(tls, b"!")).endswith(path.encode() + b"!")
        assert carrier.reached == 2


@pytest.mark.promise("boundary-5")
@pytest.mark.parametrize("says_so", [True, False])
async def test_a_body_that_only_the_end_ends_is_whole_or_no_answer(
    says_so: bool,
) -> None:
    async def serve(tls: TLSStream, wire: Wire) -> None:
        await heard(tls)
        await tls.send(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        if says_so:
            await tls.end()

    async with inspected(serve) as (tls, _, _attempt):
        await tls.send(request())
        if says_so:
            assert b"half" in await until(tls, b"0\r\n\r\n")
        else:
            assert not (await all_of(tls)).endswith(b"0\r\n\r\n")


@pytest.mark.promise("boundary-5")
@pytest.mark.parametrize("how", ["garbage", "end"])
async def test_a_server_that_breaks_off_before_its_answer_is_a_failure(
    how: str,
) -> None:
    async def serve(tls: TLSStream, wire: Wire) -> None:
        await heard(tls)
        if how == "garbage":
            await wire.garbage()
            await tls.receive()

    async with inspected(serve) as (tls, _, attempt):
        await tls.send(request())
        said = await all_of(tls)
        assert said.startswith(b"HTTP/1.1 502 "), said
        assert attempt.verdict == "failed"


@pytest.mark.promise("boundary-5")
async def test_a_whole_answer_is_passed_on_before_what_breaks_the_connection() -> None:
    async def serve(tls: TLSStream, wire: Wire) -> None:
        await heard(tls)
        await tls.send(answer(b"whole", "X: " + "y" * 40_000 + "\r\n"))
        await wire.garbage()
        await tls.receive()

    async with inspected(serve) as (tls, _, _attempt):
        await tls.send(request())
        assert (await until(tls, b"whole")).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.promise("boundary-2")
@pytest.mark.parametrize(
    ("method", "path"),
    [("CONNECT", "/"), ("TRACE", "/"), ("TRACK", "/"), ("GET", "*")],
)
async def test_methods_that_are_no_requests_of_a_path_are_refused(
    method: str, path: str
) -> None:
    async def serve(tls: TLSStream, wire: Wire) -> None:
        await heard(tls)
        await tls.send(answer(b"reached"))

    async with inspected(serve) as (tls, carrier, attempt):
        await tls.send(request(path, method))
        said = await all_of(tls)
        assert said.startswith(b"HTTP/1.1 403 ")
        assert b"not_exact" in said
        assert (carrier.reached, attempt.verdict) == (0, "refused")


@pytest.mark.promise("boundary-6")
async def test_a_value_that_broke_while_a_person_looked_is_not_called_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, outcomes = tmp_path / "token", list[Any]()
    file.write_text("t" * 40)
    hosts, where = (f"{NAME}:443",), f"file:{file}"
    rule = Credential(
        name="one", value=where, hosts=hosts, agents=("a",), variable="TOKEN"
    )
    agent = Credentials([rule]).of("a")
    assert agent is not None

    async def serve(tls: TLSStream, wire: Wire) -> None:
        assert await tls.receive() == b""

    @asynccontextmanager
    async def judged(_: Any, http: Any, __: Any, outcome: Any) -> AsyncIterator[None]:
        http.use(agent)
        file.unlink()
        try:
            yield
        finally:
            outcomes.append(outcome())

    async with inspected(serve) as (tls, carrier, _):
        monkeypatch.setattr(carrier, "judged", judged)
        token = f"Authorization: Bearer {agent.variables['TOKEN']}\r\n\r\n"
        await tls.send(request()[:-2] + token.encode())
        assert b"credential_unreadable" in await all_of(tls)
    assert "used" not in outcomes[0]
    assert outcomes[0]["verdict"] == "refused"
    assert "credential one cannot be read" in outcomes[0]["reason"]


@pytest.mark.promise("boundary-5")
async def test_connections_to_servers_count_as_those_of_programs_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        network, limits = Network.allow([f"127.0.0.1:{port}"]), Limits(connections=2)
        egress = Egress(network, limits, resolve=cast("Any", None), spawn=lambda _: 0)
        stream = CellStream(1, cast("Any", None))
        attempt = Attempt(stream, host="127.0.0.1", port=port)
        for _ in range(2):
            (await egress.reach(attempt)).close()
        with pytest.raises(EgressError, match="used up its 2 connections"):
            await egress.reach(attempt)
        assert egress.warnings == ("the run has used up its 2 connections",)


@pytest.mark.promise("boundary-2")
@pytest.mark.parametrize(
    ("sent", "status", "body"),
    [
        (OK + "Content-Length: 2\r\n\r\nok", 200, b"ok"),
        (OK + "Content-Length: 2\r\nContent-Length: 2\r\n\r\nok", 200, b"ok"),
        (OK + "Content-Length: 2\r\nContent-Length: 3\r\n\r\nok!", 502, b""),
        (OK + "Content-Length: 2, 3\r\n\r\nok!", 502, b""),
        (OK + "Content-Length: +2\r\n\r\nok", 502, b""),
        (OK + "Content-Length: 0x2\r\n\r\nok", 502, b""),
        (OK + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 502, b""),
        (OK + "Transfer-Encoding: identity\r\n\r\nok", 502, b""),
        (
            f"{OK}Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n"
            "2;x=y\r\nok\r\n0\r\nX-Trailer: late\r\n\r\n",
            200,
            b"ok",
        ),
        (OK.replace("\r", "") + "Content-Length: 2\n\nok", 200, b"ok"),
        (OK + "Content-Length : 2\r\n\r\nok", 502, b""),
        (OK + "X-(Odd): a\r\nContent-Length: 2\r\n\r\nok", 502, b""),
        (OK + "X: a\0b\r\nContent-Length: 2\r\n\r\nok", 502, b""),
        (OK + "X: a\rY: b\r\nContent-Length: 2\r\n\r\nok", 502, b""),
        ("HTTP/1.1 2000 OK\r\n\r\n", 502, b""),
        ("HTTP/2 200\r\n\r\n", 502, b""),
        ("nothing like it\r\n\r\n", 502, b""),
        ("HTTP/1.1 101 Switch\r\nUpgrade: websocket\r\n\r\nx", 502, b""),
        (OK + f"X: {'y' * 1_000_000}\r\n\r\n", 502, b""),
        (
            "HTTP/1.1 103 Early\r\nX-Early: hint\r\n\r\n"
            f"{OK}Content-Length: 2\r\nConnection: X-Own\r\n\r\nok",
            200,
            b"ok",
        ),
    ],
)
async def test_an_answer_has_one_reading_or_is_none(
    sent: str, status: int, body: bytes
) -> None:
    async def serve(tls: TLSStream, wire: Wire) -> None:
        await heard(tls)
        await tls.send(sent.encode("latin-1"))
        await tls.end()

    async with inspected(serve) as (tls, _, _attempt):
        await tls.send(request())
        reader = h11.Connection(h11.CLIENT)
        reader.send(h11.Request(method="GET", target="/", headers=[("Host", NAME)]))
        reader.send(h11.EndOfMessage())
        found, came = [], b""
        while not isinstance(event := reader.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                reader.receive_data(await tls.receive())
            elif isinstance(event, h11.Data):
                came += event.data
            elif isinstance(event, h11.InformationalResponse):
                assert event.headers == []
            elif isinstance(event, h11.Response):
                found.append(event)
        [head] = found
        names = [name for name, _ in head.headers]
        lengths = [name for name in names if name in FRAMES]
        assert (head.status_code, len(lengths), len(event.headers)) == (status, 1, 0)
        assert b"X-Early" not in names
        assert came == body if status == 200 else came.startswith(b"toolcell: ")


@pytest.mark.promise("boundary-5")
@pytest.mark.parametrize(
    ("authority", "name", "days", "told"),
    [
        (THEIRS, NAME, 1, ""),
        (THEIRS, NAME, -1, "certificate has expired"),
        (THEIRS, OTHER, 1, "Hostname mismatch"),
        (CertificateAuthority([NAME]), NAME, 1, "unable to get local issuer"),
    ],
)
async def test_a_certificate_of_another_time_name_or_maker_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
    authority: CertificateAuthority,
    name: str,
    days: int,
    told: str,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("toolcell.sandbox.network.authority._DAYS", days)
        context = authority.context.__wrapped__(name)
    received = []

    async def serve(tls: TLSStream, wire: Wire) -> None:
        received.append(await heard(tls))
        await tls.send(answer(b"whole"))

    async with inspected(serve, context) as (tls, _, attempt):
        await tls.send(request())
        said = await all_of(tls) if told else await until(tls, b"whole")
        assert told in said.decode()
        assert len(received) == (0 if told else 1)
        assert attempt.verdict == ("failed" if told else "allowed")


@pytest.mark.promise("boundary-5")
@pytest.mark.parametrize(
    ("framing", "body"),
    [
        ("Content-Length: 5", b"ab"),
        ("Transfer-Encoding: chunked", b"5\r\nab"),
        ("Transfer-Encoding: chunked", b"2\r\nab\r\n"),
        ("Transfer-Encoding: chunked", b"zz\r\nab\r\n0\r\n\r\n"),
    ],
)
async def test_a_request_that_breaks_off_is_none_for_the_server(
    framing: str, body: bytes
) -> None:
    ended, over = [], anyio.Event()

    async def serve(tls: TLSStream, wire: Wire) -> None:
        reader = h11.Connection(h11.SERVER)
        try:
            while not isinstance(event := reader.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    reader.receive_data(await tls.receive())
            ended.append("whole")
        except (OSError, h11.RemoteProtocolError):
            ended.append("broken")
        over.set()

    async with inspected(serve) as (tls, _, attempt):
        head = f"POST / HTTP/1.1\r\nHost: {NAME}\r\n{framing}\r\n\r\n"
        await tls.send(head.encode() + body)
        await tls.end()
        await over.wait()
        assert ended == ["broken"]
        assert "zz" not in attempt.reason


@pytest.mark.promise("boundary-5")
async def test_what_comes_in_single_bytes_is_whole() -> None:
    came = []

    async def serve(tls: TLSStream, wire: Wire) -> None:
        came.append(await until(tls, b"body"))
        for byte in answer(b"whole"):
            await tls.send(b"%c" % byte)

    async with inspected(serve) as (tls, _, _attempt):
        head = f"POST /slow HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: 4\r\n\r\n"
        for byte in head.encode() + b"body":
            await tls.send(b"%c" % byte)
        assert (await until(tls, b"whole")).startswith(OK.encode())
    assert came[0].startswith(b"POST /slow HTTP/1.1\r\n")


POST = f"POST / HTTP/1.1\r\nHost: {NAME}\r\n"


@pytest.mark.promise("boundary-5")
@pytest.mark.parametrize("way", ["request", "answer"])
async def test_a_body_in_tiny_chunks_leaves_the_loop_to_others(way: str) -> None:
    chunked = b"Transfer-Encoding: chunked\r\n\r\n"
    bodies = {"request": b"0\r\n\r\n", "answer": b"0\r\n\r\n"}
    bodies[way] = b"1\r\nx\r\n" * 500 + bodies[way]

    async def serve(tls: TLSStream, wire: Wire) -> None:
        await until(tls, b"0\r\n\r\n")
        await tls.send(OK.encode() + chunked + bodies["answer"])

    with calls_in_steps(h11.Connection, "next_event") as counts:
        async with inspected(serve) as (tls, _, _attempt):
            await tls.send(POST.encode() + chunked + bodies["request"])
            assert (await until(tls, b"0\r\n\r\n")).startswith(OK.encode())
    assert sum(counts) > 500
    assert max(counts) < 50


@pytest.mark.promise("boundary-5")
@pytest.mark.parametrize(
    ("sent", "reached"),
    [
        (POST[:-2], 0),
        (POST + "Content-Length: 5\r\n\r\nab", 1),
        (POST + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", 1),
        (POST + "\r\n", 1),
    ],
)
async def test_what_stays_half_ends_with_its_run(sent: str, reached: int) -> None:
    """A head, a body, and an answer that never comes."""
    begun, ended = anyio.Event(), anyio.Event()

    async def serve(tls: TLSStream, wire: Wire) -> None:
        begun.set()
        try:
            await all_of(tls)
        finally:
            ended.set()

    async with inspected(serve) as (tls, carrier, attempt):
        await tls.send(sent.encode())
        if reached:
            await begun.wait()
        attempt.stop()
        await attempt.over.wait()
        if reached:
            await ended.wait()
        assert carrier.reached == reached


@pytest.mark.promise("boundary-5")
async def test_an_answer_without_an_end_ends_with_its_run() -> None:
    ended = anyio.Event()

    async def serve(tls: TLSStream, wire: Wire) -> None:
        await heard(tls)
        try:
            await tls.send(f"{OK}Transfer-Encoding: chunked\r\n\r\n".encode())
            while True:
                await tls.send(b"5\r\nagain\r\n")
        finally:
            ended.set()

    async with inspected(serve) as (tls, _, attempt):
        await tls.send(request())
        await until(tls, b"again\r\n")
        attempt.stop()
        await attempt.over.wait()
        await ended.wait()


@pytest.mark.promise("boundary-2")
async def test_trailers_of_requests_are_not_sent() -> None:
    came = []

    async def serve(tls: TLSStream, wire: Wire) -> None:
        came.append(await until(tls, b"0\r\n\r\n"))
        await tls.send(answer(b"whole"))

    async with inspected(serve) as (tls, _, _attempt):
        body = "2\r\nok\r\n0\r\nHost: b.test\r\nAuthorization: late\r\n\r\n"
        await tls.send(f"{POST}Transfer-Encoding: chunked\r\n\r\n{body}".encode())
        await until(tls, b"whole")
    assert b"ok" in came[0]
    assert not any(text in came[0] for text in (b"b.test", b"late"))


@pytest.mark.promise("boundary-2")
async def test_half_a_head_reaches_no_server() -> None:
    async def serve(tls: TLSStream, wire: Wire) -> None:
        await heard(tls)

    async with inspected(serve) as (tls, carrier, attempt):
        await tls.send(request()[:-2])
        await tls.end()
        await attempt.over.wait()
        assert (carrier.reached, attempt.verdict) == (0, "refused")
