"""Fetches pages of the public internet, and of nothing else.

One parser reads a URL, one look-up finds its addresses, every address is checked,
and the connection goes to the address that was checked: a name that points
elsewhere a moment later points in vain. Each redirect starts from the beginning.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Collection
from contextlib import closing
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from pydantic import JsonValue

from toolcell.core import ConfigError, ToolError
from toolcell.core.addresses import is_public_address

from ..definition.context import ToolContext
from ..definition.function_tool import tool
from ..definition.tool import Tool

MAX_REDIRECTS = 5
"""Redirects that are followed. When it is reached the call fails."""

MAX_ADDRESSES = 8
"""Addresses of a host that are tried, each for its share of the time that is left.
When it is reached the others are not."""

_IPAddress = IPv4Address | IPv6Address
_IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
_REDIRECTS = (301, 302, 303, 307, 308)
_TEXT = ("json", "xml", "javascript", "x-www-form-urlencoded", "yaml")


class _Target(NamedTuple):
    """A URL in the parts that a connection needs."""

    url: str
    secure: bool
    host: str
    port: int
    path: str


def http_get_tool(
    hosts: Collection[str],
    *,
    ports: Collection[int] = (80, 443),
    networks: Collection[str] = (),
    max_bytes: int = 1_048_576,
    timeout_seconds: float = 20.0,
) -> Tool:
    """Return `http_get`, which fetches text from the hosts that are named.

    Args:
        hosts: Names such as `example.com`; `*.example.com` for all below it; `*` for
            every public host. Empty: none.
        ports: Ports that may be connected to.
        networks: Addresses that may be reached although they are not public, as
            `10.1.0.0/16`.
        max_bytes: Of a body. When it is reached the rest is not read, and
            `truncated` says so.
        timeout_seconds: For the whole call, redirects included. When it is reached
            the call ends as `timeout`.

    Raises:
        ConfigError: A network or a number cannot be used.
    """
    inner = _parse_networks(networks)
    if max_bytes < 1:
        raise ConfigError(
            "max_bytes must be at least 1", hint="leave it out for the default"
        )
    allowed = frozenset(host.lower() for host in hosts)

    @tool(tags={"net"}, timeout=timeout_seconds, cost={"bytes": max_bytes})
    def http_get(url: str, context: ToolContext) -> dict[str, JsonValue]:
        """Fetch a text from the web.

        Args:
            url: The whole address, http or https.
        """
        for _ in range(MAX_REDIRECTS + 1):
            target = _read(url, allowed, frozenset(ports))
            response = _fetch(target, inner, max_bytes, context)
            if isinstance(response, dict):
                return response
            url = urljoin(target.url, response)
            if target.secure and not url.lower().startswith("https:"):
                raise ToolError(
                    "a redirect leads from https to http",
                    hint="ask for the https address that it really has",
                )
        raise ToolError(
            f"more than {MAX_REDIRECTS} redirects",
            hint="ask for the address that it leads to",
        )

    return http_get


def _parse_networks(networks: Collection[str]) -> tuple[_IPNetwork, ...]:
    try:
        return tuple(ipaddress.ip_network(each) for each in networks)
    except ValueError as error:
        raise ConfigError(
            f"http_get: {error}",
            hint="write networks like 10.1.0.0/16",
        ) from None


def _read(url: str, hosts: frozenset[str], ports: frozenset[int]) -> _Target:
    """Return the parts of a URL that reads one way only.

    Raises:
        ToolError: It does not, or leads where it may not.
    """
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise ToolError(
            "the URL holds a character that has to be percent-encoded",
            hint="write a space as %20, and other such characters alike",
        )
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        raise ToolError(
            "this is not a URL", hint="write it like https://example.org/page"
        ) from None
    if parts.scheme not in ("http", "https") or not host:
        raise ToolError(
            "a URL begins with http:// or https:// and a host",
            hint="write it like https://example.org/page",
        )
    if "@" in parts.netloc:
        raise ToolError(
            "a URL must not hold a user or a password",
            hint="leave out what stands before the @",
        )
    if not _may_ask(host, hosts):
        raise ToolError(
            f"the host {host} is not allowed",
            hint="use another host; who set this tool up may add it to its `hosts`",
        )
    secure = parts.scheme == "https"
    port = (443 if secure else 80) if port is None else port
    if port not in ports:
        raise ToolError(
            f"the port {port} is not allowed",
            hint="use another port; who set this tool up may add it to its `ports`",
        )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return _Target(url, secure, host, port, path)


def _may_ask(host: str, hosts: frozenset[str]) -> bool:
    if "*" in hosts or host in hosts:
        return True
    labels = host.split(".")
    above = (".".join(labels[start:]) for start in range(1, len(labels)))
    return any(f"*.{name}" in hosts for name in above)


def _within(address: _IPAddress, network: _IPNetwork) -> bool:
    return address.version == network.version and address in network


def _addresses(target: _Target, inner: tuple[_IPNetwork, ...]) -> list[str]:
    """Look a host up and return its addresses if every one may be reached."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ToolError(
            f"the host {target.host} has no address", hint="check its spelling"
        ) from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for text in addresses:
        address = ipaddress.ip_address(text.partition("%")[0])
        known = any(_within(address, network) for network in inner)
        if not known and not is_public_address(address):
            raise ToolError(
                f"the host {target.host} is not on the public internet",
                hint="ask a public host",
            )
    return addresses[:MAX_ADDRESSES]


def _fetch(
    target: _Target,
    inner: tuple[_IPNetwork, ...],
    max_bytes: int,
    context: ToolContext,
) -> dict[str, JsonValue] | str:
    """Return the answer, or where it redirects to."""
    addresses = _addresses(target, inner)
    deadline = time.monotonic() + _left(context)
    connection = http.client.HTTPConnection(target.host, target.port)
    try:
        sock = connection.sock = _connect(target, addresses, deadline)
        left = max(deadline - time.monotonic(), 0.001)
        sock.settimeout(left)
        # A server that drips keeps every single read short: this ends them all.
        end = threading.Timer(left, socket.socket.shutdown, (sock, socket.SHUT_RDWR))
        end.daemon = True
        end.start()
        try:
            if isinstance(sock, ssl.SSLSocket):
                sock.do_handshake()
            answer = _exchange(target, connection, max_bytes)
        finally:
            end.cancel()
        # What was cut off at the deadline looks like an end.
        context.check_cancelled()
        return answer
    except (OSError, http.client.HTTPException) as error:
        context.check_cancelled()
        raise ToolError(
            f"{target.host} did not answer well",
            hint="try again later, or ask another host",
        ) from error
    finally:
        connection.close()


_HEADERS = {
    # What is compressed would be counted before it grows.
    "Accept-Encoding": "identity",
    "Accept": "text/*, application/json, application/xml;q=0.9",
    "User-Agent": "toolcell",
    "Connection": "close",
}


def _connect(target: _Target, addresses: list[str], deadline: float) -> socket.socket:
    """Return a connection to the first checked address that answers.

    With TLS its handshake is still to be made. Raises OSError.
    """
    problem = OSError("no address")
    for tried, address in enumerate(addresses):
        left = max(deadline - time.monotonic(), 0.001)
        share = left / (len(addresses) - tried)
        try:
            plain = socket.create_connection((address, target.port), share)
        except OSError as error:
            problem = error
            continue
        if not target.secure:
            return plain
        tls = ssl.create_default_context()
        return tls.wrap_socket(
            plain, server_hostname=target.host, do_handshake_on_connect=False
        )
    raise problem


def _left(context: ToolContext) -> float:
    """Return the seconds that are left.

    Raises:
        ToolTimeoutError: None are.
    """
    context.check_cancelled()
    remaining = context.remaining()
    return 20.0 if remaining is None else max(0.001, remaining)


def _exchange(
    target: _Target, connection: http.client.HTTPConnection, max_bytes: int
) -> dict[str, JsonValue] | str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    headers = {**_HEADERS, "Host": f"{host}:{target.port}"}
    connection.request("GET", target.path, headers=headers)
    with closing(connection.getresponse()) as response:
        return _content(target, response, max_bytes)


def _content(
    target: _Target, response: http.client.HTTPResponse, max_bytes: int
) -> dict[str, JsonValue] | str:
    location = response.getheader("Location")
    if response.status in _REDIRECTS and location is not None:
        return location
    kind = response.headers.get_content_type()
    if response.getheader("Content-Encoding", "identity") != "identity":
        raise ToolError(
            f"{target.host} answered with compressed content",
            hint="ask for another address",
        )
    if not kind.startswith("text/") and not kind.endswith(_TEXT):
        raise ToolError(
            f"{target.host} answered with {kind}, which is no text",
            hint="ask for a page of text, JSON or XML",
        )
    body = response.read(max_bytes + 1)
    charset = response.headers.get_content_charset() or "utf-8"
    try:
        text = body[:max_bytes].decode(charset, "replace")
    except LookupError:
        text = body[:max_bytes].decode("utf-8", "replace")
    return {
        "url": target.url,
        "status": response.status,
        "content_type": kind,
        "text": text,
        "truncated": len(body) > max_bytes,
    }
