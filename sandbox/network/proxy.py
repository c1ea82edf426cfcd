"""Requests of programs to the proxy: HTTP, CONNECT and SOCKS5.

Sources: RFC 9110 section 7, RFC 9112 section 3.2, RFC 1928.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from types import MappingProxyType

import h11

from ..config.host_rules import read_authority, read_host, write_authority
from .http_request import (
    HTTPRequest,
    asks_for_web_socket,
    check_host,
    new_reader,
    read_head,
    split_absolute,
)
from .types import HTTP_PORT, ByteStream, EgressError

_NOT_SERVED = "501 Not Implemented"
_NO_UPGRADE = "plain connections carry no web sockets here: use wss:// or CONNECT"
_SOCKS = 5
_NO_METHOD, _NOT_ALLOWED, _NO_HOST, _NO_COMMAND, _NO_ADDRESS = 0xFF, 2, 4, 7, 8


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
    direct: bool = False
    """True if a listener of a rule took it, and its program knows of no proxy."""

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
        if self.direct:
            return b""
        if self.socks:
            return _socks_answer(0)
        return b"" if self.http else b"HTTP/1.1 200 Connection established\r\n\r\n"

    def error_reply(
        self,
        reason: str,
        headers: Mapping[str, str] = MappingProxyType({}),
        *,
        failed: bool = False,
    ) -> bytes:
        """Return the reply to the program when it gets no connection.

        Args:
            reason: The reason, in the body of an HTTP reply.
            headers: Headers of an HTTP reply.
            failed: True if the host did not answer, False if it is not allowed.
        """
        if self.direct:
            return b""
        if self.socks:
            return _socks_answer(_NO_HOST if failed else _NOT_ALLOWED)
        status = "502 Bad Gateway" if failed else "403 Forbidden"
        return http_answer(status, reason, headers)


async def read_proxy_request(source: ByteStream) -> ProxyRequest | None:
    """Read the request at the start of a connection; None if it ends at once.

    Raises:
        EgressError: It is not a request to a proxy.
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
                raise EgressError("the request ended too early")
            self.rest += more
        part, self.rest = self.rest[:size], self.rest[size:]
        return part

    async def send(self, data: bytes) -> None:
        await self._source.send(data)


async def _read_socks(buffer: _Buffer) -> ProxyRequest:
    methods = await buffer.take((await buffer.take(2))[1])
    if 0 not in methods:
        raise EgressError("SOCKS with a password", bytes((_SOCKS, _NO_METHOD)))
    await buffer.send(bytes((_SOCKS, 0)))
    version, command, _, kind = await buffer.take(4)
    if version != _SOCKS or command != 1:
        raise EgressError("SOCKS without CONNECT", _socks_answer(_NO_COMMAND))
    if kind == 1:
        host = str(IPv4Address(await buffer.take(4)))
    elif kind == 4:
        host = str(IPv6Address(await buffer.take(16)))
    elif kind == 3:
        host = (await buffer.take((await buffer.take(1))[0])).decode("latin-1")
    else:
        raise EgressError("SOCKS without an address", _socks_answer(_NO_ADDRESS))
    port = int.from_bytes(await buffer.take(2), "big")
    try:
        host, port = read_authority(write_authority(read_host(host), port))
    except ValueError as error:
        raise EgressError(str(error), _socks_answer(_NOT_ALLOWED)) from None
    return ProxyRequest(host=host, port=port, socks=True, rest=buffer.rest)


def _socks_answer(code: int) -> bytes:
    return bytes((_SOCKS, code, 0, 1)) + bytes(6)


def http_answer(
    status: str, reason: str, headers: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    """Return an HTTP response of the proxy's own, which ends the connection."""
    body = f"toolcell: {reason}\n".encode("ascii", "backslashreplace")
    fields = {
        "Content-Type": "text/plain",
        "Connection": "close",
        **headers,
        "Content-Length": str(len(body)),
    }
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {fields[name]}" for name in fields)]
    return "\r\n".join([*lines, "", ""]).encode("ascii", "replace") + body


async def _read_http(source: ByteStream, first: bytes) -> ProxyRequest:
    connection = new_reader()
    try:
        request = await read_head(connection, source, first)
        if request.method == b"CONNECT":
            host, port = read_authority(request.target.decode("ascii"))
            check_host(request, host, port, default_port=port)
            return ProxyRequest(host=host, port=port, rest=_behind(connection))
        found = split_absolute(request.target.decode("ascii"))
        if found is None:
            raise ValueError("this is a proxy; ask it for http://... or CONNECT")
        if asks_for_web_socket(request):
            raise EgressError(_NO_UPGRADE, http_answer(_NOT_SERVED, _NO_UPGRADE))
        authority, path = found
        host, port = read_authority(authority, HTTP_PORT)
        check_host(request, host, port)
    except (h11.ProtocolError, ValueError) as error:
        reason = str(error)
        raise EgressError(reason, http_answer("400 Bad Request", reason)) from None
    http = HTTPRequest(connection, request, path, host, port)
    return ProxyRequest(host=host, port=port, http=http)


def _behind(connection: h11.Connection) -> bytes:
    """Return bytes that followed a CONNECT. Raises ValueError if it has a body."""
    if not isinstance(connection.next_event(), h11.EndOfMessage):
        raise ValueError("CONNECT has no body")
    return connection.trailing_data[0]
