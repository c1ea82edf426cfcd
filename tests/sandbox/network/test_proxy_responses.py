"""Plain HTTP responses that pass through the proxy."""

from __future__ import annotations

import pytest

from toolcell.sandbox import Network, SandboxManager
from toolcell.sandbox.credentials.masking import Mask
from toolcell.sandbox.network.http_request import ResponseHead

from ...conftest import BackendRow

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
def test_a_response_says_that_its_connection_closes(said: bytes, heard: bytes) -> None:
    """A client's pool would use the connection again, and find it closed."""
    for size in (1, 7, 1 << 16):
        head = ResponseHead(Mask({}))
        pieces = [said[i : i + size] for i in range(0, len(said), size)]
        assert b"".join(map(head.pass_on, pieces)) + head.end() == heard


@pytest.mark.promise("boundary-6")
def test_a_plain_response_shows_no_value() -> None:
    value, shown = b"v" * 30, b"p" * 30
    said = b"HTTP/1.1 200 OK %s\r\nA: %s\r\n\r\n1%s2" % ((value,) * 3)
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    for size in (1, 7, 1 << 16):
        head = ResponseHead(Mask({value: shown}))
        assert head.pass_on(interim) == interim, "a client waits for it"
        pieces = [said[i : i + size] for i in range(0, len(said), size)]
        heard = b"".join(map(head.pass_on, pieces)) + head.end()
        assert heard.count(shown) == 3
        assert value not in heard


@pytest.mark.promise("boundary-6")
@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 206 P\r\nA: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-Encoding:gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Encoding: identity, br\n\n",
    ],
)
def test_a_plain_response_that_cannot_be_searched_breaks_off(head: bytes) -> None:
    assert ResponseHead(Mask({})).pass_on(head)
    with pytest.raises(OSError, match="cannot be searched"):
        ResponseHead(Mask({b"v": b"p"})).pass_on(head)


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


@pytest.mark.promise("QN13")
@pytest.mark.anyio
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
