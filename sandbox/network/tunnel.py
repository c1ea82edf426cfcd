"""The first bytes in a tunnel: they must name the host that was asked for.

TLS and HTTP name one. Bytes that some server would take for either, and that hide the
name, are refused; all others pass unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import h11

from ..config.host_rules import read_authority, read_host
from .client_hello import HANDSHAKE, RECORDS, read_client_hello
from .http_request import (
    MAX_HEAD_BYTES,
    HTTPRequest,
    check_host,
    new_reader,
    read_head,
    split_absolute,
)
from .proxy import ProxyRequest
from .types import HTTP_PORT, ByteStream, EgressError

_MAX_LINE_BYTES = 16_384
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


async def read_tunnel_preamble(
    source: ByteStream, proxy_request: ProxyRequest
) -> bytes | HTTPRequest:
    """Read the first bytes in a tunnel, as far as they can name a host.

    TLS and HTTP do; their host has to be the one of the proxy request.

    Returns:
        The bytes, to be passed on unchanged; or a request, to be made anew.

    Raises:
        EgressError: They name another host than the proxy request.
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
        raise EgressError(f"TLS: {error}") from None
    if hello.encrypted:
        raise EgressError("TLS: it hides whom it calls for")
    return True


def _is_http(data: bytes, host: str, *, ended: bool) -> bool | None:
    """Return True if HTTP begins here; None if more bytes are needed. Checks TLS."""
    if data[:1] in _OTHER_RECORDS:
        # Some servers skip alerts, and read the ClientHello after them.
        raise EgressError("TLS: it does not begin with a ClientHello")
    if data.startswith(_PROXY_HEADERS):
        raise EgressError("a header of the PROXY protocol hides what is behind it")
    if data.startswith(bytes((HANDSHAKE,))):
        return False if _names_the_host(data, host) or ended else None
    line, newline, behind = data.lstrip(_BLANK).partition(b"\n")
    if not _MAY_BE_HTTP.match(line):
        return False
    if len(data) - len(behind) > _MAX_LINE_BYTES:
        raise EgressError("its first line is too long")
    if not newline and not ended:
        return None
    if _VERSION.search(line):
        return True
    if _NO_VERSION.match(line):
        raise EgressError("HTTP without a version names no host")
    return False


async def forward_opaque(
    data: bytes, source: ByteStream, send: Callable[[bytes], Awaitable[None]]
) -> None:
    """Send a tunnel's bytes that are not HTTP unchanged; `data` is their beginning.

    Some servers take any bytes for a method, so the first line is checked to its end,
    or until it is longer than servers read.

    Raises:
        EgressError: The first line ends like that of an HTTP request.
    """
    line, newline = b"", b""
    while data:
        if not newline and len(line) <= MAX_HEAD_BYTES:
            line, newline, _ = (line + data).lstrip(_BLANK).partition(b"\n")
            if newline and _ENDS_IN_VERSION.search(line):
                raise EgressError("HTTP with a method that is not valid")
        await send(data)
        data = await source.receive()


async def _inner_request(
    source: ByteStream, data: bytes, proxy_request: ProxyRequest
) -> HTTPRequest:
    connection = new_reader()
    try:
        request = await read_head(connection, source, data)
        if request.http_version >= b"2" or request.method == b"CONNECT":
            raise ValueError("HTTP/2 and tunnels inside a tunnel need TLS")
        target = request.target.decode("ascii")
        if found := split_absolute(target):
            authority, target = found
            if read_authority(authority, HTTP_PORT) != (
                proxy_request.host,
                proxy_request.port,
            ):
                raise ValueError(f"the request is for {authority[:100]!r}")
        elif not target.startswith("/") and (request.method, target) != _OPTIONS:
            raise ValueError("the target is neither a path nor http://...")
        check_host(request, proxy_request.host, proxy_request.port)
        return HTTPRequest(
            connection, request, target, proxy_request.host, proxy_request.port
        )
    except (h11.ProtocolError, ValueError) as error:
        raise EgressError(str(error)) from None
