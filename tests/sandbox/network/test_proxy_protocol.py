"""What a program may say to the proxy, byte by byte, and what it is told."""

from __future__ import annotations

import ssl
import struct
from collections.abc import Iterable

import pytest

from toolcell.sandbox.network.client_hello import MAX_HELLO_BYTES, read_client_hello
from toolcell.sandbox.network.http_request import HTTPRequest, new_writer
from toolcell.sandbox.network.proxy import ProxyRequest, read_proxy_request
from toolcell.sandbox.network.tunnel import forward_opaque, read_tunnel_preamble
from toolcell.sandbox.network.types import EgressError

pytestmark = pytest.mark.anyio


class Script:
    """A program that says what was written down, and remembers what it hears."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = [part for part in parts if part]
        self.heard = b""

    async def receive(self) -> bytes:
        return self._parts.pop(0) if self._parts else b""

    async def send(self, data: bytes) -> None:
        self.heard += data


def in_bytes(text: bytes) -> Script:
    return Script(text[i : i + 1] for i in range(len(text)))


async def request_of(text: bytes) -> ProxyRequest:
    whole = await read_proxy_request(Script([text]))
    piecemeal = await read_proxy_request(in_bytes(text))
    assert whole is not None
    assert piecemeal is not None
    assert (whole.host, whole.port) == (piecemeal.host, piecemeal.port)
    return whole


async def made(
    preamble: bytes | HTTPRequest | None, rest: Iterable[bytes] = ()
) -> bytes:
    """Return what a request looks like to its server."""
    sent: list[bytes] = []

    async def send(data: bytes) -> None:
        sent.append(data)

    assert isinstance(preamble, HTTPRequest)
    await preamble.make(new_writer(), Script(rest), send)
    return b"".join(sent)


def client_hello(name: str | None) -> bytes:
    """Return what a real TLS client says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


async def test_http_is_made_anew_without_what_was_for_the_proxy() -> None:
    request = await request_of(
        b"GET HTTP://Example.org:80/a?b HTTP/1.1\r\nHost: example.org\r\nX-A: 1\r\n"
        b"Proxy-Authorization: secret\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n"
        b"Upgrade: h2c\r\nTE: trailers\r\n\r\n"
    )

    assert (request.authority, request.success_reply) == ("example.org:80", b"")
    assert await made(request.http) == (
        b"GET /a?b HTTP/1.1\r\nHost: example.org\r\nX-A: 1\r\nConnection: close\r\n\r\n"
    )


@pytest.mark.promise("QN2")
async def test_a_plain_web_socket_is_refused_by_name() -> None:
    text = b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\n"
    text += b"Upgrade: websocket\r\n\r\n"
    with pytest.raises(EgressError, match="wss://") as refused:
        await request_of(text)
    assert refused.value.answer.startswith(b"HTTP/1.1 501 ")


@pytest.mark.promise("E-68")
async def test_a_body_ends_where_its_head_says() -> None:
    """What follows is a second request, that nobody has judged."""
    head = b"POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\n"
    request = await request_of(
        head + b"abcGET http://b.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n"
    )
    both = await request_of(
        b"POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 30\r\n"
        b"Connection: content-type\r\nConnection: a\r\nContent-Type: text/a\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nA: 1\r\n\r\nGET /b\r\n\r\n"
    )
    chunked = await made(both.http)

    assert (await made(request.http)).endswith(b"\r\n\r\nabc")
    assert chunked.count(b"ontent-") == chunked.count(b"Content-Type: text/a") == 1
    assert chunked.endswith(b"\r\n\r\n2\r\nhi\r\n0\r\n\r\n")


async def test_a_body_may_come_in_any_pieces() -> None:
    head = b"PUT http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\n\r\n"
    request = await request_of(head)

    assert (await made(request.http, [b"a", b"bc", b"d"])).endswith(b"abcd")
    short = await request_of(head)
    with pytest.raises(EgressError):
        await made(short.http, [b"a"])


async def test_connect_and_what_follows_it() -> None:
    head = b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n"
    request = await request_of(head + b"rest")
    old = await request_of(b"CONNECT [::1]:443 HTTP/1.0\r\n\r\n")

    assert (request.authority, request.rest) == ("a.test:443", b"rest")
    assert request.success_reply.startswith(b"HTTP/1.1 200 ")
    assert request.error_reply("why").startswith(b"HTTP/1.1 403 ")
    assert (old.host, old.port) == ("::1", 443)


@pytest.mark.parametrize(
    ("kind", "address", "host"),
    [
        (1, bytes([192, 0, 2, 1]), "192.0.2.1"),
        (3, b"\x06A.test", "a.test"),
        (4, bytes(15) + b"\x01", "::1"),
        (3, b"\x09127.0.0.1", "127.0.0.1"),
    ],
)
async def test_socks(kind: int, address: bytes, host: str) -> None:
    text = bytes((5, 1, 0, 5, 1, 0, kind)) + address + struct.pack(">H", 443) + b"rest"
    script = Script([text])
    request = await read_proxy_request(script)

    assert request is not None
    assert (request.host, request.port, request.rest) == (host, 443, b"rest")
    assert script.heard == b"\x05\x00"
    assert request.success_reply[:2] == b"\x05\x00"
    assert request.error_reply("no")[1] == 2
    assert request.error_reply("no", failed=True)[1] == 4


@pytest.mark.promise("E-68")
@pytest.mark.parametrize(
    "text",
    [
        b"\x05\x01\x02",
        b"\x05\x01\x00\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50",
        b"\x05\x01\x00\x05\x03\x00\x01\x7f\x00\x00\x01\x00\x50",
        b"\x05\x01\x00\x05\x01\x00\x07\x7f\x00\x00\x01\x00\x50",
        b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x00",
        b"\x05\x01\x00\x05\x01\x00\x03\x03127\x00\x50",
        b"\x05\x01\x00\x05\x01\x00\x03\x020\x78\x00\x50",
        b"\x05\x01\x00\x05\x01\x00\x03\x00\x00\x50",
        b"\x05\x01\x00\x05\x01\x00\x01\x7f",
        b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00",
        b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET ftp://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET http:///x HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET http://u@a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET http://a.test\\@b.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n",
        b"GET http://a.test:80:80/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET http://a.test:8O/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET http://127.1/ HTTP/1.1\r\nHost: 127.1\r\n\r\n",
        b"GET http://0x7f000001/ HTTP/1.1\r\nHost: 0x7f000001\r\n\r\n",
        b"GET http://2130706433/ HTTP/1.1\r\nHost: 2130706433\r\n\r\n",
        b"GET http://017700000001/ HTTP/1.1\r\nHost: 017700000001\r\n\r\n",
        b"GET http://a.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n",
        b"GET http://a.test:81/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET http://a.test/ HTTP/1.1\r\n\r\n",
        b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n",
        b"GET http://a.test/ HTTP/1.1\r\nHost : a.test\r\n\r\n",
        b"CONNECT a.test HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"CONNECT a.test:443 HTTP/1.1\r\nHost: b.test:443\r\n\r\n",
        b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\n\r\nx",
        b"CONNECT u@a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"\x16\x03\x01\x00\x05hello",
        b"\x00",
    ],
    ids=lambda text: repr(text[:40]),
)
async def test_what_is_no_plain_request_is_refused(text: bytes) -> None:
    with pytest.raises(EgressError):
        await read_proxy_request(Script([text]))
    if len(text) < 1000:
        with pytest.raises(EgressError):
            await read_proxy_request(in_bytes(text))


async def test_a_program_that_says_nothing_asks_for_nothing() -> None:
    assert await read_proxy_request(Script([])) is None


HOST = ProxyRequest(host="a.test", port=443)


@pytest.mark.parametrize("name", ["a.test", "A.Test", None])
async def test_tls_passes_unchanged(name: str | None) -> None:
    hello = client_hello(name)
    for script in (Script([hello]), in_bytes(hello)):
        assert await read_tunnel_preamble(script, HOST) == hello


def in_records(message: bytes, size: int) -> bytes:
    """Return one handshake message cut into records."""
    pieces = (message[i : i + size] for i in range(0, len(message), size))
    return b"".join(
        struct.pack(">BHH", 22, 0x0301, len(piece)) + piece for piece in pieces
    )


@pytest.mark.promise("E-68")
async def test_tls_that_calls_for_another_host_is_refused() -> None:
    hello = client_hello("b.test")
    twice = in_records(hello[5:], 7)

    for text in (hello, twice):
        with pytest.raises(EgressError, match=r"b\.test"):
            await read_tunnel_preamble(Script([text]), HOST)
        with pytest.raises(EgressError, match=r"b\.test"):
            await read_tunnel_preamble(in_bytes(text), HOST)
    with pytest.raises(EgressError):
        await read_tunnel_preamble(
            Script([hello]), ProxyRequest(host="192.0.2.1", port=443)
        )


def with_extension(hello: bytes, kind: int, body: bytes) -> bytes:
    """Return a hello with one more extension at its end."""
    message = bytearray(hello[9:])
    extra = struct.pack(">HH", kind, len(body)) + body
    at = 2 + 32
    at += 1 + message[at]
    at += 2 + int.from_bytes(message[at : at + 2], "big")
    at += 1 + message[at]
    size = int.from_bytes(message[at : at + 2], "big") + len(extra)
    message[at : at + 2] = size.to_bytes(2, "big")
    message += extra
    return in_records(b"\x01" + len(message).to_bytes(3, "big") + message, 16_000)


@pytest.mark.promise("E-68")
async def test_tls_that_hides_or_doubles_its_host_is_refused() -> None:
    hello = client_hello("a.test")
    name = struct.pack(">HBH", 9, 0, 6) + b"b.test"
    both = struct.pack(">HBH6sBH6s", 18, 0, 6, b"a.test", 0, 6, b"b.test")
    bare = client_hello(None)

    assert await read_tunnel_preamble(Script([with_extension(hello, 99, b"")]), HOST)
    for bad in (
        with_extension(hello, 0xFE0D, b"\0" * 20),
        with_extension(hello, 0, name),
        with_extension(bare, 0, both),
        with_extension(bare, 0, b""),
        with_extension(bare, 0, struct.pack(">HBH", 3, 0, 0)),
        with_extension(bare, 0, struct.pack(">HBH4s", 7, 0, 4, b"\xffabc")),
    ):
        with pytest.raises(EgressError, match="TLS"):
            await read_tunnel_preamble(Script([bad]), HOST)


@pytest.mark.promise("E-68")
@pytest.mark.parametrize(
    "text",
    [
        b"\x16\x03\x01\x00\x00",
        b"\x16\x02\x00\x00\x05\x01\x00\x00\x01\x00",
        b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00",
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        b"\x16\x03\x01\xff\xff\x01",
    ],
)
def test_what_only_looks_like_tls_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        read_client_hello(text)


@pytest.mark.promise("E-68")
def test_a_hello_has_an_end() -> None:
    message = b"\x01\xff\xff\xff" + bytes(MAX_HELLO_BYTES)
    with pytest.raises(ValueError, match="too long"):
        read_client_hello(in_records(message, 16_000))


async def test_http_in_a_tunnel_is_made_anew() -> None:
    text = b"\r\nGET /x HTTP/1.1\r\nHost: a.test:443\r\n\r\n"
    for script in (Script([text]), in_bytes(text)):
        preamble = await read_tunnel_preamble(script, HOST)
        assert (await made(preamble)).startswith(
            b"GET /x HTTP/1.1\r\nHost: a.test:443\r\n"
        )


@pytest.mark.promise("E-68", "QN11")
@pytest.mark.parametrize(
    "text",
    [
        b"GET / HTTP/1.1\r\nHost: b.test\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"get / http/1.1\nhost: b.test\n\n",
        b" GET / HTTP/1.1\r\nHost: a.test:443\r\n\r\n",
        b"GET\t/\tHTTP/1.1\r\nHost: a.test:443\r\n\r\n",
        b"GET http://b.test/ HTTP/1.1\r\nHost: a.test:443\r\n\r\n",
        b"CONNECT b.test:443 HTTP/1.1\r\nHost: b.test:443\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\n\n\nGET / HTTP/1.1\r\nHost: b.test\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: b.test\r\n\r\n",
        b"GET /\0 HTTP/1.1\r\nHost: b.test\r\n\r\n",
        b"GET \x01 HTTP/1.1\r\nHost: b.test\r\n\r\n",
        b"get \xff http/1.1\nHost: b.test\n\n",
        b"0 / HTTP/1.1\r\nHost: b.test\r\n\r\n",
        b"\x1c\x85\xa0GET\x0c/\xff\x1fHTTP/1.1\r\nHost: b.test\r\n\r\n",
        b" \r\n\tGET /\xff HTTP/1.1\r\nHost: b.test\r\n\r\n",
        b"GET /\xff HTTP/1.1\rHost: b.test\r\r",
        b"GET http://b.test/\xff HTTP/1.1\r\nHost: a.test:443\r\n\r\n",
        b"GET http://b.test/ HTTP/1.0",
        b"GET http://b.test/\r\n",
        b"get HTTP://b.test/\n",
        b"GET /\r\nHost: b.test\r\n\r\n",
        b"GET x\xff\r\nHost: b.test\r\n\r\n",
        b"GET \x01\r\nHost: b.test\r\n\r\n",
        b"POST /\nHost: b.test\n\n",
    ],
)
async def test_http_in_a_tunnel_to_another_host_is_refused(text: bytes) -> None:
    for cut in range(len(text)):
        with pytest.raises(EgressError):
            await read_tunnel_preamble(Script([text[:cut], text[cut:]]), HOST)
    with pytest.raises(EgressError):
        await read_tunnel_preamble(in_bytes(text), HOST)


@pytest.mark.promise("A21")
@pytest.mark.parametrize(
    "target",
    [
        *("ftp://b.test/", "https://b.test/", "https://a.test:443/", "x:/b.test"),
        *("httpx://b.test/", "http:b.test/", "http:/b.test/", "b.test", "a.test:443"),
        *("*", "?", "@b.test/", "http://b.test/"),
    ],
)
async def test_a_target_in_a_tunnel_is_a_path_or_the_tunnels_own_host(
    target: str,
) -> None:
    text = f"GET {target} HTTP/1.1\r\nHost: a.test:443\r\n\r\n".encode()

    for script in (Script([text]), in_bytes(text)):
        with pytest.raises(EgressError):
            await read_tunnel_preamble(script, HOST)


async def test_a_tunnel_may_ask_its_own_host_for_anything() -> None:
    for line in ("GET http://a.test:443/x", "GET /x?y=http://b.test", "OPTIONS *"):
        text = f"{line} HTTP/1.1\r\nHost: a.test:443\r\n\r\n".encode()
        preamble = await read_tunnel_preamble(Script([text]), HOST)
        assert b"\r\nHost: a.test:443\r\n" in await made(preamble)


BEFORE_A_HELLO = [
    b"\x15\x03\x01\x00\x02\x01\x00",
    b"\x15\x03\x03\x00\x02\x01\x5a" * 3,
    b"\x15\x00\x01\x00\x02\x01\x00",
    b"\x14\x03\x03\x00\x01\x01",
    b"\x17\x03\x03\x00\x00",
    b"\x18\x03\x03\x00\x03\x01\x00\x00",
    b"\x16\x03\x01\x00\x04\x00\x00\x00\x00",
    b"\x16\x03\x01\x00\x00",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 1 443\r\n",
    b"PROXY UNKNOWN\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12),
]


@pytest.mark.promise("A21")
@pytest.mark.parametrize("before", BEFORE_A_HELLO)
@pytest.mark.parametrize("behind", [client_hello("b.test"), b"GET / HTTP/1.1\r\n\r\n"])
async def test_nothing_comes_before_a_hello(before: bytes, behind: bytes) -> None:
    text = before + behind
    for script in (Script([text]), in_bytes(text), Script([before, behind])):
        with pytest.raises(EgressError):
            await read_tunnel_preamble(script, HOST)


@pytest.mark.promise("A21")
async def test_a_hello_in_pieces_is_read_to_its_end() -> None:
    whole, other = client_hello("a.test")[5:], client_hello("b.test")[5:]
    for size in (1, 7, 100):
        pieces = in_records(whole, size)
        assert await read_tunnel_preamble(in_bytes(pieces), HOST) == pieces
        with pytest.raises(EgressError, match="it calls for"):
            await read_tunnel_preamble(in_bytes(in_records(other, size)), HOST)
        with pytest.raises(EgressError):
            alert = b"\x15\x03\x01\x00\x02\x01\x00"
            await read_tunnel_preamble(Script([pieces[: size + 5] + alert]), HOST)


@pytest.mark.promise("E-68")
@pytest.mark.parametrize(
    "text", [b"GET /" + b"a" * 17_000, b"a" * 17_000, b"\n" * 17_000 + b"GET /"]
)
async def test_a_first_line_in_a_tunnel_has_an_end(text: bytes) -> None:
    rest = b" HTTP/1.1\r\nHost: b.test\r\n\r\n"
    pieces = [text[i : i + 1000] for i in range(0, len(text), 1000)]

    for parts in ([text, rest], [text + rest], [*pieces, rest]):
        with pytest.raises(EgressError, match="too long"):
            await read_tunnel_preamble(Script(parts), HOST)


async def passed(parts: Iterable[bytes], *, refused: bool = False) -> bytes:
    """Return what of a tunnel's bytes gets to its server."""
    script, sent = Script(parts), b""

    async def send(data: bytes) -> None:
        nonlocal sent
        sent += data

    preamble = await read_tunnel_preamble(script, HOST)
    assert isinstance(preamble, bytes)
    if refused:
        with pytest.raises(EgressError):
            await forward_opaque(preamble, script, send)
    else:
        await forward_opaque(preamble, script, send)
    return sent


@pytest.mark.promise("E-68")
@pytest.mark.parametrize(
    "line",
    [
        *(
            b"\xff / HTTP/1.1",
            b"\0GET / HTTP/1.1",
            b"G\xffT / http/1.1 ",
            b"{} / HTTP/1.1",
        ),
        *(
            b"\r\n\0\x0b/\x1cHTTP/1.1\r",
            b"0 \x02 HTTP/1.1",
            b"\0" * 60_000 + b" / HTTP/1.1",
        ),
    ],
    ids=lambda line: repr(line[:20]),
)
async def test_what_is_no_method_does_not_become_one(line: bytes) -> None:
    """There are servers that take any bytes for a method."""
    text = line + b"\nHost: b.test\n\n"
    cuts = range(max(1, len(line) - 40), len(text))

    for parts in ([text], *([text[:cut], text[cut:]] for cut in cuts)):
        assert b"Host" not in await passed(parts, refused=True)
    assert await passed([text[i : i + 1] for i in range(len(text))], refused=True)


@pytest.mark.parametrize(
    "text",
    [
        *(b"SSH-2.0-x\r\n", b"\0\0\0\x08", b'{"a": 1}', b"*1\r\n$4\r\nPING\r\n"),
        *(b"AMQP\0\0\x09\x01", b" \0\0\x01\x85"),
        *(b"0\x0c\x02\x01\x01", b"0 \x02\x01\x03"),
        *(b"get key\r\n", b"EHLO a.test\r\n", b"a1 LOGIN\r\n", b'CONNECT {"a":1}\r\n'),
        *(b"\0" * 17_000, b"{" + b"a" * 17_000),
    ],
    ids=lambda text: repr(text[:20]),
)
async def test_other_protocols_pass_without_waiting_for_more(text: bytes) -> None:
    class Open(Script):
        async def receive(self) -> bytes:
            if not self._parts:
                raise AssertionError("it waits for what will not come")
            return await super().receive()

    assert await read_tunnel_preamble(Open([text]), HOST) == text
    assert await read_tunnel_preamble(Script([]), HOST) == b""
    request = ProxyRequest(host="a.test", port=443, rest=text)
    assert await read_tunnel_preamble(Open([]), request) == text


async def test_other_protocols_may_speak_of_http() -> None:
    log = b'\0\0\0\x08"GET / HTTP/1.1" 200\n GET / HTTP/1.1\nHost: b.test\n'

    for cut in range(len(log)):
        assert await passed([log[:cut], log[cut:]]) == log
    assert await passed([b"no line", b" ends"]) == b"no line ends"
