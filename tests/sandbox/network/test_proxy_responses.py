"""Plain HTTP responses that pass through the proxy."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, cast

import anyio
import h11
import pytest

from toolcell.sandbox import Network, SandboxManager
from toolcell.sandbox.config.credentials import Credential
from toolcell.sandbox.credentials.agents import AgentCredentials, Credentials
from toolcell.sandbox.network.attempt import Attempt
from toolcell.sandbox.network.exchange import PlainResponse, answer_to
from toolcell.sandbox.network.http_request import (
    HTTPRequest,
    ResponseHead,
    new_reader,
    new_writer,
    read_head,
)
from toolcell.sandbox.network.stream import CellStream
from toolcell.sandbox.network.types import PlainAnswer

from ...conftest import BackendRow
from ...support.web.loop_steps import calls_in_steps

pytestmark = pytest.mark.anyio

RESPONSES = {
    b"HTTP/1.1 200 OK\r\nA: 1\r\n\r\nbody\r\n\r\nmore": (
        b"HTTP/1.1 200 OK\r\nA: 1\r\nConnection: close\r\n\r\nbody\r\n\r\nmore"
    ),
    b"HTTP/1.1 204 N\r\nconnection: Keep-Alive\r\n x\r\nKeep-Alive: 5\r\n\r\n": (
        b"HTTP/1.1 204 N\r\nConnection: close\r\n\r\n"
    ),
    b"HTTP/1.1 103 E\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\n\nbody": (
        b"HTTP/1.1 103 E\r\nLink: x\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbody"
    ),
    b"HTTP/1.1 200 cut": b"HTTP/1.1 200 cut",
    b"": b"",
}


@pytest.mark.promise("QN1")
@pytest.mark.parametrize(("said", "heard"), RESPONSES.items())
async def test_a_response_says_that_its_connection_closes(
    said: bytes, heard: bytes
) -> None:
    """A client's pool would use the connection again, and find it closed."""
    for size in (1, 7, 1 << 16):
        assert await shown_by(ResponseHead(), said, size) == heard


async def shown_by(response: PlainAnswer, said: bytes, size: int) -> bytes:
    """Return what a program hears of what a server says in pieces of a size."""
    pieces = [said[i : i + size] for i in range(0, len(said), size)]
    heard = b"".join([bytes(await response.pass_on(piece)) for piece in pieces])
    return heard + await response.end()


@pytest.fixture
def agent(tmp_path: Path) -> AgentCredentials:
    (tmp_path / "token").write_text(VALUE.decode())
    rule = Credential(
        name="one",
        value=f"file:{tmp_path / 'token'}",
        hosts=("a.test:443",),
        agents=("a",),
        variable="ONE",
    )
    found = Credentials([rule]).of("a")
    assert found is not None
    return found


async def answer_for(agent: AgentCredentials, version: str = "1.1") -> PlainAnswer:
    """Return what makes the answer to a plain request of an agent's program."""
    stream = CellStream(1, cast("Any", None))
    reader, out = new_reader(), new_writer()
    told = f"GET /a HTTP/{version}\r\nHost: b.test\r\n\r\n"
    head = await read_head(reader, stream, told.encode())
    request = HTTPRequest(reader, head, "/a", "b.test", 80)
    request.use(agent)

    async def send(data: bytes) -> None:
        """Send nothing."""

    await request.make(out, stream, send)
    return answer_to(Attempt(stream), request, out)


VALUE = b"v" * 16 + b"w" * 16
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
PIECES = b"".join(b"1\r\n%c\r\n" % byte for byte in VALUE) + b"0\r\n\r\n"
EARLY = b"HTTP/1.1 103 %s\r\nA: %s\r\n\r\n" % (VALUE, VALUE)


@pytest.mark.promise("boundary-6")
@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize(
    ("said", "shows"),
    [
        (b"HTTP/1.1 200 OK %s\r\nA: %s\r\n\r\n1%s2" % ((VALUE,) * 3), 3),
        (EARLY + OK + b"\r\n" + VALUE, 1),
        (OK + b"A:\r\n %s\r\nContent-Length: 32\r\n\r\n%s" % (VALUE, VALUE), 2),
        (OK + b"Content-Encoding:\r\n identity\r\n\r\n" + VALUE, 1),
        (CHUNKED + PIECES, 1),
        (
            CHUNKED
            + b"10\r\n%s\r\n10;x\r\n%s\r\n0\r\n" % (VALUE[:16], VALUE[16:])
            + b"Content-Encoding: gzip\r\nA: %s\r\n\r\n" % VALUE,
            1,
        ),
    ],
)
async def test_a_plain_response_shows_no_value(
    agent: AgentCredentials, said: bytes, shows: int, version: str
) -> None:
    shown = agent.variables["ONE"].encode()
    for size in (1, 7, 1 << 16):
        heard = await shown_by(await answer_for(agent, version), said, size)
        assert b"connection: close" in heard.lower()
        # What comes in chunks is whole in some client.
        whole = heard + b"".join(heard.partition(b"\r\n\r\n")[2].split(b"\r\n")[1::2])
        assert whole.count(shown) >= shows
        assert VALUE not in whole


@pytest.mark.promise("boundary-6")
async def test_a_client_that_waits_hears_that_it_may_go_on(
    agent: AgentCredentials,
) -> None:
    response = await answer_for(agent)
    heard = await response.pass_on(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert bytes(heard).startswith(b"HTTP/1.1 100 ")


@pytest.mark.promise("boundary-6")
@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 206 P\r\nA: 1\r\n\r\n",
        b"HTTP/1.1 226 IM Used\r\nIM: gzip\r\n\r\n",
        OK + b"content-Encoding:gzip\r\n\r\n",
        OK + b"Content-Encoding: GZIP\r\n\r\n",
        OK + b"Content-Encoding: x-gzip\r\n\r\n",
        OK + b"Content-Encoding: of-tomorrow\r\n\r\n",
        OK + b"Content-Encoding:\r\n gzip\r\n\r\n",
        OK + b"Content-Encoding: identity\r\n\t, gzip\r\n\r\n",
        OK + b"Content-Encoding: ,gzip\r\n\r\n",
        OK + b"Content-Encoding: identity\r\ncontent-encoding: gzip\r\n\r\n",
        OK + b"Content-Encoding:\r\nContent-Encoding: br\r\n\r\n",
        OK + b"Content-Encoding : gzip\r\n\r\n",
        OK + b" Content-Encoding: gzip\r\n\r\n",
        OK + b"A: b\rContent-Encoding: gzip\r\n\r\n",
        OK + b"A: %s\r\nContent-Encoding: gzip\r\n\r\n" % (b"b" * 70_000),
        OK + b"Transfer-Encoding: gzip\r\n\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        OK + b"Transfer-Encoding:\r\n gzip,\r\n chunked\r\n\r\n",
        b"HTTP/1.1  100 C\r\n\r\n" + OK + b"Content-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 101 S\r\n\r\n" + OK + b"Content-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 103 E\r\n\r\n" + OK + b"Content-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Encoding: identity, br\n\n",
        b"HTTP/3 200 OK\r\nContent-Encoding: gzip\r\n\r\n",
        b"body of HTTP/0.9\r\n\r\n",
    ],
)
async def test_a_plain_response_that_cannot_be_searched_breaks_off(
    agent: AgentCredentials, head: bytes
) -> None:
    packed = gzip.compress(VALUE)
    for size in (1, 7, 1 << 17):
        heard = bytearray()
        response = await answer_for(agent)
        said = head + packed
        with pytest.raises(OSError, match="the server's answer is"):
            for place in range(0, len(said), size):
                heard += await response.pass_on(said[place : place + size])
        assert not any(part in heard for part in (packed, b"200 OK", VALUE))


@pytest.mark.promise("boundary-6")
@pytest.mark.parametrize(
    "said", [OK + b"Content-Length: 9\r\n\r\nhalf", CHUNKED + b"4\r\nhalf\r\n", b""]
)
async def test_a_plain_response_that_is_not_whole_breaks_off(
    agent: AgentCredentials, said: bytes
) -> None:
    with pytest.raises(OSError, match="not whole"):
        await shown_by(await answer_for(agent), said, 1 << 16)


@pytest.mark.promise("boundary-6")
async def test_what_follows_a_whole_response_is_not_kept(
    agent: AgentCredentials,
) -> None:
    response = await answer_for(agent)
    assert isinstance(response, PlainResponse)
    assert await response.pass_on(OK + b"Content-Length: 0\r\n\r\nmore")
    for _ in range(100):
        assert await response.pass_on(b"x" * 1000) == b""

    assert response._out.trailing_data == (b"more", False)


@pytest.mark.promise("QN7")
@pytest.mark.parametrize("begin", [OK + b"\r\n", CHUNKED])
async def test_events_pass_on_as_they_come(begin: bytes) -> None:
    response = ResponseHead()
    event = b"9\r\ndata: 1\n\n\r\n" if begin == CHUNKED else b"data: 1\n\n"
    await response.pass_on(begin)

    assert [bytes(await response.pass_on(event)) for _ in range(3)] == [event] * 3


@pytest.mark.promise("boundary-5")
async def test_a_response_in_tiny_chunks_leaves_the_loop_to_others(
    agent: AgentCredentials,
) -> None:
    response = await answer_for(agent)
    with calls_in_steps(h11.Connection, "next_event") as counts:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(response.pass_on, CHUNKED + b"1\r\nx\r\n" * 500)
    assert sum(counts) > 500
    assert max(counts) < 50


OWN_SERVER = """
import http.server, threading, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(204)
        self.end_headers()
    def log_message(self, *_): pass
server = http.server.HTTPServer(("0.0.0.0", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"http://{name}:{server.server_port}/"
urllib.request.urlopen(address).status
"""


@pytest.mark.promise("QN13", "QN9")
async def test_a_programs_own_server_is_reached_past_the_proxy(
    backend: BackendRow,
) -> None:
    # Confined cells have the machine's own names.
    names = ["localhost", "127.0.0.1", "0.0.0.0"]
    if backend.name != "confined":
        names += ["cell", "127.0.0.2", "127.0.1.1"]
    config = backend.config(network=Network.allow(["api.example.org:443"]))
    async with SandboxManager(config) as sandbox, sandbox.session() as session:
        for name in names:
            result = await session.run(OWN_SERVER, inputs={"name": name})
            assert result.value == 204, (name, result.stderr)
