"""Proxy requests of programs (HTTP, CONNECT, SOCKS5), and checks of what follows them.

Sources: RFC 9110 section 7, RFC 9112 section 3.2, RFC 1928.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

import h11

from ..config.host_rules import read_authority, read_host, write_authority
from .client_hello import HANDSHAKE, RECORDS, read_client_hello
from .types import ByteStream

_MAX_HEAD_BYTES = 65_536
_MAX_LINE_BYTES = 16_384
_HTTP_PORT = 80
_ABSOLUTE = re.compile(r"(?i:http)://([^/?#]*)(.*)", re.DOTALL)
# Lenient servers skip these before a method, and take them for a space: str.split().
_BLANK = b"\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0"
_SPACE = b"[" + _BLANK + b"]"
_METHOD = rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
# No target begins with a control character; LDAP has one after "0" and its length.
_MAY_BE_HTTP = re.compile(
    b"(?:%b)?(?:%b+(?:[^\0- ]|\\Z)|\\Z)|GET%b" % (_METHOD, _SPACE, _SPACE)
)
_OTHER_RECORDS = tuple(bytes((kind,)) for kind in RECORDS if kind != HANDSHAKE)
_PROXY_HEADERS = (b"PROXY ", b"\r\n\r\n\0")
_VERSION = re.compile(rb"(?i)HTTP/")
# HTTP/0.9, and first lines that some servers take for it.
_NO_VERSION = re.compile(b"GET%b|%b%b+(?i:/|https?:)" % (_SPACE, _METHOD, _SPACE))
_ENDS_IN_VERSION = re.compile(b"(?i)%bHTTP/[0-9.+_]*%b*\\Z" % (_SPACE, _SPACE))
_OPTIONS = (b"OPTIONS", "*")
_HOP_BY_HOP = frozenset(
    (
        "connection keep-alive proxy-authenticate proxy-authorization proxy-connection "
        "te trailer upgrade"
    ).split()
)
_SOCKS = 5
_NO_METHOD, _NOT_ALLOWED, _NO_HOST, _NO_COMMAND, _NO_ADDRESS = 0xFF, 2, 4, 7, 8


class RefusedError(Exception):
    """A request of a program is refused.

    Args:
        reason: The reason, for the record of the connection.
        answer: The reply in the program's own protocol; empty for none.
    """

    def __init__(self, reason: str, answer: bytes = b"") -> None:
        super().__init__(reason)
        self.answer = answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRequest:
    """A request of a program to the proxy: a host and a port to reach.

    The host has exactly one spelling here (see `config.host_rules`), and every check
    and connection uses this one. With `http` the proxy makes the request itself;
    without, the program gets a tunnel.
    """

    host: str
    port: int
    socks: bool = False
    http: HTTPRequest | None = None
    """The HTTP request that the proxy is to make; None for a tunnel."""

    rest: bytes = b""
    """Bytes that followed the request."""

    @property
    def authority(self) -> str:
        """Host and port as people write them."""
        return write_authority(self.host, self.port)

    @property
    def success_reply(self) -> bytes:
        """The reply to the program once the connection stands."""
        if self.socks:
            return _socks_answer(0)
        return b"" if self.http else b"HTTP/1.1 200 Connection established\r\n\r\n"

    def error_reply(self, reason: str, *, failed: bool = False) -> bytes:
        """Return the reply to the program when it gets no connection.

        Args:
            reason: The reason, in the body of an HTTP reply.
            failed: True if the host did not answer, False if it is not allowed.
        """
        if self.socks:
            return _socks_answer(_NO_HOST if failed else _NOT_ALLOWED)
        status = "502 Bad Gateway" if failed else "403 Forbidden"
        return _http_answer(status, reason)


async def read_proxy_request(source: ByteStream) -> ProxyRequest | None:
    """Read the request at the start of a connection; None if it ends at once.

    Raises:
        RefusedError: It is not a request to a proxy.
    """
    first = await source.receive()
    if not first:
        return None
    if first[0] == _SOCKS:
        return await _read_socks(_Buffer(source, first))
    return await _read_http(source, first)


class _Buffer:
    """Reads exact numbers of bytes from a stream."""

    def __init__(self, source: ByteStream, data: bytes) -> None:
        self._source = source
        self.rest = data

    async def take(self, size: int) -> bytes:
        while len(self.rest) < size:
            more = await self._source.receive()
            if not more:
                raise RefusedError("the request ended too early")
            self.rest += more
        part, self.rest = self.rest[:size], self.rest[size:]
        return part

    async def send(self, data: bytes) -> None:
        await self._source.send(data)


async def _read_socks(buffer: _Buffer) -> ProxyRequest:
    methods = await buffer.take((await buffer.take(2))[1])
    if 0 not in methods:
        raise RefusedError("SOCKS with a password", bytes((_SOCKS, _NO_METHOD)))
    await buffer.send(bytes((_SOCKS, 0)))
    version, command, _, kind = await buffer.take(4)
    if version != _SOCKS or command != 1:
        raise RefusedError("SOCKS without CONNECT", _socks_answer(_NO_COMMAND))
    if kind == 1:
        host = str(IPv4Address(await buffer.take(4)))
    elif kind == 4:
        host = str(IPv6Address(await buffer.take(16)))
    elif kind == 3:
        host = (await buffer.take((await buffer.take(1))[0])).decode("latin-1")
    else:
        raise RefusedError("SOCKS without an address", _socks_answer(_NO_ADDRESS))
    port = int.from_bytes(await buffer.take(2), "big")
    try:
        host, port = read_authority(write_authority(read_host(host), port))
    except ValueError as error:
        raise RefusedError(str(error), _socks_answer(_NOT_ALLOWED)) from None
    return ProxyRequest(host=host, port=port, socks=True, rest=buffer.rest)


def _socks_answer(code: int) -> bytes:
    return bytes((_SOCKS, code, 0, 1)) + bytes(6)


def _http_answer(status: str, reason: str) -> bytes:
    body = f"toolcell: {reason}\n".encode("ascii", "backslashreplace")
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _read_http(source: ByteStream, first: bytes) -> ProxyRequest:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
    try:
        request = await _read_head(connection, source, first)
        if request.method == b"CONNECT":
            host, port = read_authority(request.target.decode("ascii"))
            _check_host(request, host, port, default_port=port)
            return ProxyRequest(host=host, port=port, rest=_behind(connection))
        found = _ABSOLUTE.fullmatch(request.target.decode("ascii"))
        if found is None:
            raise ValueError("this is a proxy; ask it for http://... or CONNECT")
        host, port = read_authority(found[1], _HTTP_PORT)
        _check_host(request, host, port)
    except (h11.ProtocolError, ValueError) as error:
        reason = str(error)
        raise RefusedError(reason, _http_answer("400 Bad Request", reason)) from None
    http = HTTPRequest(connection, request, _path(found[2]), host, port)
    return ProxyRequest(host=host, port=port, http=http)


async def _read_head(
    connection: h11.Connection, source: ByteStream, first: bytes
) -> h11.Request:
    connection.receive_data(first)
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await source.receive())
    if not isinstance(event, h11.Request):
        raise ValueError("the request ended too early")
    return event


def _behind(connection: h11.Connection) -> bytes:
    """Return bytes that followed a CONNECT. Raises ValueError if it has a body."""
    if not isinstance(connection.next_event(), h11.EndOfMessage):
        raise ValueError("CONNECT has no body")
    return connection.trailing_data[0]


def _check_host(
    request: h11.Request, host: str, port: int, default_port: int = _HTTP_PORT
) -> None:
    """Check that the Host header of a request is the host that it goes to.

    Raises:
        ValueError: It names another one.
    """
    for name, value in request.headers:
        if name == b"host":
            named = read_authority(value.decode("latin-1"), default_port)
            if named != (host, port):
                raise ValueError(
                    f"the Host header says {write_authority(*named)}, "
                    f"the request goes to {write_authority(host, port)}"
                )


def _path(text: str) -> str:
    return text if text.startswith("/") else f"/{text}"


class HTTPRequest:
    """A request that is made anew, so that the server gets exactly what was checked.

    Args:
        connection: Parses the rest of the request.
        request: Its head.
        target: Path and query for the server.
        host: The server.
        port: Its port.
    """

    def __init__(
        self,
        connection: h11.Connection,
        request: h11.Request,
        target: str,
        host: str,
        port: int,
    ) -> None:
        self._connection = connection
        self._head = h11.Request(
            method=request.method,
            target=target,
            headers=_headers(request, host, port),
        )

    async def make(
        self, source: ByteStream, send: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Send the request and its body; a connection carries one request.

        Raises:
            RefusedError: The body does not match its head.
        """
        out = h11.Connection(h11.CLIENT)
        event: object = self._head
        try:
            while not isinstance(event, h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    self._connection.receive_data(await source.receive())
                elif isinstance(event, h11.Request | h11.Data):
                    await send(out.send(event) or b"")
                else:
                    raise RefusedError("the request ended too early")
                event = self._connection.next_event()
            await send(out.send(event) or b"")
        except h11.ProtocolError as error:
            raise RefusedError(str(error)) from None


def _headers(request: h11.Request, host: str, port: int) -> list[tuple[bytes, bytes]]:
    """Return the headers for the server, without those meant for the proxy."""
    named = dict(request.headers)
    nominated = named.get(b"connection", b"").lower().split(b",")
    dropped = {name.strip().decode("latin-1") for name in nominated} | _HOP_BY_HOP
    if b"transfer-encoding" in named:
        dropped.add("content-length")
    dropped.add("host")
    dropped -= {"transfer-encoding"}
    authority = write_authority(host, port)
    if port == _HTTP_PORT:
        authority = authority.removesuffix(f":{_HTTP_PORT}")
    return [
        (b"Host", authority.encode()),
        *(
            (name, value)
            for name, value in request.headers.raw_items()
            if name.lower().decode("latin-1") not in dropped
        ),
        (b"Connection", b"close"),
    ]


async def read_tunnel_preamble(
    source: ByteStream, proxy_request: ProxyRequest
) -> bytes | HTTPRequest:
    """Read the first bytes in a tunnel, as far as they can name a host.

    TLS and HTTP do; their host has to be the one of the proxy request.

    Returns:
        The bytes, to be passed on unchanged; or a request, to be made anew.

    Raises:
        RefusedError: They name another host than the proxy request.
    """
    data = more = proxy_request.rest or await source.receive()
    while (is_http := _is_http(data, proxy_request.host, ended=not more)) is None:
        more = await source.receive()
        data += more
    if is_http:
        return await _inner_request(source, data.lstrip(b"\r\n"), proxy_request)
    return data


def _names_the_host(data: bytes, host: str) -> bool:
    """Check the server name of a ClientHello; False if it is incomplete."""
    try:
        hello = read_client_hello(data)
        if hello is None:
            return False
        name = hello.server_name
        if name is not None and read_host(name) != host:
            raise ValueError(f"it calls for {name[:100]!r} at {host}")
    except ValueError as error:
        raise RefusedError(f"TLS: {error}") from None
    if hello.encrypted:
        raise RefusedError("TLS: it hides whom it calls for")
    return True


def _is_http(data: bytes, host: str, *, ended: bool) -> bool | None:
    """Return True if HTTP begins here; None if more bytes are needed. Checks TLS."""
    if data[:1] in _OTHER_RECORDS:
        # Some servers skip alerts, and read the ClientHello after them.
        raise RefusedError("TLS: it does not begin with a ClientHello")
    if data.startswith(_PROXY_HEADERS):
        raise RefusedError("a header of the PROXY protocol hides what is behind it")
    if data.startswith(bytes((HANDSHAKE,))):
        return False if _names_the_host(data, host) or ended else None
    line, newline, behind = data.lstrip(_BLANK).partition(b"\n")
    if not _MAY_BE_HTTP.match(line):
        return False
    if len(data) - len(behind) > _MAX_LINE_BYTES:
        raise RefusedError("its first line is too long")
    if not newline and not ended:
        return None
    if _VERSION.search(line):
        return True
    if _NO_VERSION.match(line):
        raise RefusedError("HTTP without a version names no host")
    return False


async def forward_opaque(
    data: bytes, source: ByteStream, send: Callable[[bytes], Awaitable[None]]
) -> None:
    """Send a tunnel's bytes that are not HTTP unchanged; `data` is their beginning.

    Some servers take any bytes for a method, so the first line is checked to its end,
    or until it is longer than servers read.

    Raises:
        RefusedError: The first line ends like that of an HTTP request.
    """
    line, newline = b"", b""
    while data:
        if not newline and len(line) <= _MAX_HEAD_BYTES:
            line, newline, _ = (line + data).lstrip(_BLANK).partition(b"\n")
            if newline and _ENDS_IN_VERSION.search(line):
                raise RefusedError("HTTP with a method that is none")
        await send(data)
        data = await source.receive()


async def _inner_request(
    source: ByteStream, data: bytes, proxy_request: ProxyRequest
) -> HTTPRequest:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
    try:
        request = await _read_head(connection, source, data)
        if request.http_version >= b"2" or request.method == b"CONNECT":
            raise ValueError("HTTP/2 and tunnels inside a tunnel need TLS")
        target = request.target.decode("ascii")
        if found := _ABSOLUTE.fullmatch(target):
            target = _path(found[2])
            if read_authority(found[1], _HTTP_PORT) != (
                proxy_request.host,
                proxy_request.port,
            ):
                raise ValueError(f"the request is for {found[1][:100]!r}")
        elif not target.startswith("/") and (request.method, target) != _OPTIONS:
            raise ValueError("the target is neither a path nor http://...")
        _check_host(request, proxy_request.host, proxy_request.port)
        return HTTPRequest(
            connection, request, target, proxy_request.host, proxy_request.port
        )
    except (h11.ProtocolError, ValueError) as error:
        raise RefusedError(str(error)) from None
