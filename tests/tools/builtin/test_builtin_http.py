"""`http_get`: what it fetches, and everything that it must not reach."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio.to_thread
import pytest

from toolcell.core import ConfigError, ToolCall, ToolResult
from toolcell.core.addresses import is_public_address
from toolcell.sandbox.network.authority import CertificateAuthority
from toolcell.tools import ConcurrentExecutor, Tool, ToolRegistry
from toolcell.tools.builtin import http_get_tool

from ...support.polling import until

pytestmark = pytest.mark.anyio
LOCAL = ["127.0.0.1/32"]


class Site(BaseHTTPRequestHandler):
    """A small site; it counts who came."""

    hits: list[str]
    go_on: threading.Event

    def do_GET(self) -> None:
        self.hits.append(self.path)
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path[4:])
            self.end_headers()
        elif self.path == "/drip":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            while not self.go_on.wait(0.01):
                self.wfile.write(b"X-Drip: 1\r\n"[:1])
        else:
            self._page()

    def _page(self) -> None:
        kinds = {"/image": "image/png", "/latin": "text/plain; charset=latin-1"}
        kind = kinds.get(self.path, "text/html; charset=utf-8")
        bodies = {"/latin": "ü".encode("latin-1"), "/large": b"x" * 5000}
        body = bodies.get(self.path, "<h1>ü</h1>".encode())
        self.send_response(404 if self.path == "/missing" else 200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.path == "/gzip":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Be quiet."""


@pytest.fixture
def site() -> Iterator[ThreadingHTTPServer]:
    handler: Any = type("Handler", (Site,), {"hits": [], "go_on": threading.Event()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    handler.go_on.set()
    server.shutdown()
    thread.join()
    server.server_close()


def hits(site: ThreadingHTTPServer) -> list[str]:
    handler: Any = site.RequestHandlerClass
    seen: list[str] = handler.hits
    return seen


def local(site: ThreadingHTTPServer, **options: Any) -> Tool:
    options = {"hosts": ["127.0.0.1"], "networks": LOCAL, **options}
    return http_get_tool(ports=[site.server_port], **options)


async def get(made: Tool, url: str) -> ToolResult:
    executor = ConcurrentExecutor(ToolRegistry([made]), guard=None)
    return await executor.call(
        ToolCall(id="1", name="http_get", arguments={"url": url})
    )


def told(result: ToolResult) -> str:
    return "" if result.error is None else result.error.message


async def test_a_page_is_fetched(site: ThreadingHTTPServer) -> None:
    base = f"http://127.0.0.1:{site.server_port}"
    page = await get(local(site), f"{base}/a?b=c#d")
    latin = await get(local(site), f"{base}/latin")
    missing = await get(local(site), f"{base}/missing")
    contents: list[Any] = [page.content, latin.content, missing.content]

    assert contents[0] == {
        "url": f"{base}/a?b=c#d",
        "status": 200,
        "content_type": "text/html",
        "text": "<h1>ü</h1>",
        "truncated": False,
    }
    assert (contents[1]["text"], contents[2]["status"]) == ("ü", 404)
    assert hits(site)[0] == "/a?b=c"


@pytest.mark.promise("R21")
async def test_sizes_are_capped_and_kinds_checked(site: ThreadingHTTPServer) -> None:
    base = f"http://127.0.0.1:{site.server_port}"
    large = await get(local(site, max_bytes=1000), f"{base}/large")
    content: Any = large.content

    assert (len(content["text"]), content["truncated"]) == (1000, True)
    assert "no text" in told(await get(local(site), f"{base}/image"))
    assert "compressed" in told(await get(local(site), f"{base}/gzip"))


async def test_redirects_are_followed_and_bounded(site: ThreadingHTTPServer) -> None:
    base = f"http://127.0.0.1:{site.server_port}"
    found = await get(local(site), f"{base}/to//to/{base}/end")
    content: Any = found.content
    endless = await get(local(site), f"{base}/to/" + "/to/" * 9)

    assert content["url"] == f"{base}/end"
    assert "redirects" in told(endless)


@pytest.mark.promise("R21")
async def test_a_server_that_drips_ends_at_the_deadline(
    site: ThreadingHTTPServer,
) -> None:
    made = local(site, timeout_seconds=0.3)
    executor = ConcurrentExecutor(ToolRegistry([made]), guard=None)
    url = f"http://127.0.0.1:{site.server_port}/drip"
    asked = ToolCall(id="1", name="http_get", arguments={"url": url})

    assert (await executor.call(asked)).status == "timeout"
    # Its thread is not left to the server's mercy.
    await until(lambda: executor.still_running == 0)


@pytest.mark.promise("E-67")
async def test_loopback_is_refused_without_leave(site: ThreadingHTTPServer) -> None:
    made = http_get_tool(["*"], ports=[site.server_port])
    for host in ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "127.1", "[::1]"]:
        result = await get(made, f"http://{host}:{site.server_port}/")
        assert result.status == "error", host

    assert hits(site) == []


@pytest.mark.promise("E-67", "E-68")
@pytest.mark.parametrize(
    "address",
    [
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.100.100.200",
        "168.63.129.16",
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.1",
        "::",
        "::1",
        "fe80::1",
        "fd00:ec2::254",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:a9fe:a9fe",
        "2002:7f00:1::",
        "64:ff9b::7f00:1",
        "64:ff9b:1::7f00:1",
        "::7f00:1",
        "2001:0:4136:e378:8000:63bf:80ff:fffe",
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public_address(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111"])
def test_addresses_that_are_public(address: str) -> None:
    assert is_public_address(ipaddress.ip_address(address))


@pytest.mark.promise("E-68")
@pytest.mark.parametrize(
    "target",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://localhost:{port}/secret",
        "http://[::ffff:127.0.0.1]:{port}/secret",
        "file:///etc/passwd",
        "http://user:pass@127.0.0.1:{port}/secret",
        "http://127.0.0.1:22/",
        "gopher://127.0.0.1:{port}/secret",
    ],
)
async def test_redirects_are_checked_again(
    site: ThreadingHTTPServer, target: str
) -> None:
    url = target.format(port=site.server_port)
    result = await get(local(site), f"http://127.0.0.1:{site.server_port}/to/{url}")

    assert result.status == "error"
    assert len(hits(site)) == 1


@pytest.mark.promise("E-68")
@pytest.mark.parametrize(
    "url",
    [
        "http://other.org/",
        "http://example.com.evil.org/",
        "http://evil.org#example.com",
        "http://evil.org?example.com",
        "http://example.com@evil.org/",
        "http://evil.org\\@example.com/",
        "http://example.com\t.evil.org/",
        "http://exam\u200bple.com/",
        "http://\u0435xample.com/",
        "http://example.com:8080/",
        "http://example.com:99999/",
        "ftp://example.com/",
        "//example.com/",
        "http:///x",
        "example.com",
        "http://example.com/a b",
        "http://example.com/\r\nX-Injected: 1",
        "http://[example.com/",
    ],
)
async def test_only_named_hosts_are_asked(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **_: asked.append(a))
    result = await get(http_get_tool(["example.com", "*.example.net"]), url)

    assert result.status == "error"
    assert asked == []


@pytest.mark.promise("R75", "R76")
@pytest.mark.parametrize("label", ["a.", "%61.", "日.", "xn--a.", "1.", "-."])
async def test_a_name_of_a_million_labels_is_refused_at_once(label: str) -> None:
    made = http_get_tool(["example.com", "*.example.net"])
    before = time.process_time()
    result = await get(made, f"https://{label * 1_000_000}example.net/")

    assert result.status == "error"
    # In quadratic time it would be hours.
    assert time.process_time() - before < 10


@pytest.mark.promise("RO-08")
async def test_no_hosts_is_no_host() -> None:
    assert "not allowed" in told(await get(http_get_tool([]), "http://example.com/"))


@pytest.mark.promise("E-68", "RL-26")
async def test_a_name_that_changes_its_address_is_looked_up_once(
    site: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rebinding: the second look-up would lead to the site; there is none."""
    looked_up: list[str] = []

    def resolver(*first: str) -> Callable[..., Any]:
        answers = iter([*first, *["127.0.0.1"] * 9])

        def look_up(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
            if host.replace(".", "").isdigit():
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]
            looked_up.append(host)
            address = next(answers)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

        return look_up

    made = http_get_tool(["rebind.test"], ports=[site.server_port])
    # TEST-NET-1 is no public address either: it stands for one that was checked.
    monkeypatch.setattr(socket, "getaddrinfo", resolver("10.0.0.1"))
    url = f"http://rebind.test:{site.server_port}/"
    refused = await get(made, url)
    connected: list[Any] = []

    def connect(address: Any, *_: Any) -> Any:
        connected.append(address)
        raise OSError("no network here")

    monkeypatch.setattr(socket, "getaddrinfo", resolver("8.8.8.8"))
    monkeypatch.setattr(socket, "create_connection", connect)
    await get(made, url)

    assert "public internet" in told(refused)
    assert looked_up == ["rebind.test", "rebind.test"]
    assert connected == [("8.8.8.8", site.server_port)]
    assert hits(site) == []


@pytest.mark.parametrize("wrong", [{"networks": ["10.0.0.0/33"]}, {"max_bytes": 0}])
def test_bad_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        http_get_tool(["*"], **wrong)


@pytest.mark.promise("A15")
async def test_many_addresses_that_swallow_connections_share_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    waits: list[float] = []

    def connect(address: Any, timeout: float) -> Any:
        nonlocal now
        now += timeout
        waits.append(timeout)
        raise TimeoutError("nobody answers")

    def look_up(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        many = (f"8.8.{number % 3}.{number % 256}" for number in range(300))
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in many
        ]

    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("toolcell.core.http_exchange.time", clock)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "create_connection", connect)
    made = http_get_tool(["many.test"], timeout_seconds=20)
    result = await get(made, "http://many.test/")

    assert "did not answer" in told(result)
    assert len(waits) == 8
    assert sum(waits) <= 20
    assert min(waits) > 1


async def test_a_deadline_that_comes_as_the_connection_ends_is_no_error(
    site: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer that fires cannot be cancelled any more."""
    late: list[Callable[[], object]] = []

    class Timer:
        def __init__(self, seconds: float, function: Any, arguments: Any) -> None:
            late.append(lambda: function(*arguments))

        def start(self) -> None:
            """Wait for the test."""

        cancel = start

    threads = SimpleNamespace(Timer=Timer)
    monkeypatch.setattr("toolcell.core.http_exchange.threading", threads)
    result = await get(local(site), f"http://127.0.0.1:{site.server_port}/")
    [cut] = late
    cut()

    assert result.status == "ok"


async def test_a_handshake_that_drips_ends_at_the_deadline() -> None:
    """Each byte comes in time; the handshake never ends."""
    begun, over, ended = (threading.Event() for _ in range(3))
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        peer, _ = listener.accept()
        begun.set()
        with peer:
            peer.sendall(b"\x16\x03\x03\x40\x00")
            try:
                while not over.wait(0.02):
                    peer.sendall(b"\0")
            except OSError:
                ended.set()

    thread = threading.Thread(target=drip)
    thread.start()
    port = listener.getsockname()[1]
    made = http_get_tool(
        ["127.0.0.1"], ports=[port], networks=LOCAL, timeout_seconds=0.5
    )
    try:
        while not begun.is_set():
            # The time may be over before it connects.
            result = await get(made, f"https://127.0.0.1:{port}/")
            assert result.status == "timeout"
        assert await anyio.to_thread.run_sync(ended.wait, 60)
    finally:
        over.set()
        thread.join()
        listener.close()


@pytest.mark.parametrize(("says_end", "status"), [(True, "ok"), (False, "error")])
async def test_a_secure_answer_of_no_known_length_ends_where_its_host_says_so(
    says_end: bool, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, trusted = "api.example.test", tmp_path / "ca.pem"
    authority = CertificateAuthority([name])
    trusted.write_text(authority.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(60)
    place = (socket.AF_INET, socket.SOCK_STREAM, 0, "", listener.getsockname())
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [place])

    def answer() -> None:
        # It goes away before it has read the client's own end.
        with suppress(OSError), listener.accept()[0] as peer:
            tls = authority.context(name).wrap_socket(peer, server_side=True)
            with tls:
                tls.recv(65_536)
                tls.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nhalf")
                if says_end:
                    tls.unwrap()

    thread = threading.Thread(target=answer)
    thread.start()
    with listener:
        port = listener.getsockname()[1]
        made = http_get_tool([name], ports=[port], networks=LOCAL)
        result = await get(made, f"https://{name}:{port}/")
        thread.join()

    assert result.status == status, told(result)
    assert ("half" in str(result.content)) == says_end
