"""Places that requests may go to, and the reading of URLs."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from .addresses import is_public_address
from .errors import ConfigError, ToolError

MAX_ADDRESSES = 8
"""Addresses of a host that are tried, each for its share of the time that is left.
When it is reached the others are not."""

MAX_NAME = 253
"""Characters of a host's name, as in the DNS. A longer one is refused."""

MAX_LABEL = 63
"""Characters between two dots of a host's name, as in the DNS. More are refused."""

_IPAddress = IPv4Address | IPv6Address
_IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class Target(NamedTuple):
    """A URL in the parts that a connection needs."""

    url: str
    secure: bool
    host: str
    port: int
    path: str


@dataclass(frozen=True, slots=True)
class EgressRules:
    """The hosts, ports and inner networks that requests may go to."""

    hosts: frozenset[str]
    """Names in small letters; `*.example.com` for all below it; `*` for every host."""

    ports: frozenset[int]
    networks: tuple[_IPNetwork, ...]
    """Addresses that may be reached although they are not public."""

    @classmethod
    def of(
        cls,
        owner: str,
        hosts: Collection[str],
        ports: Collection[int],
        networks: Collection[str],
    ) -> Self:
        """Return the rules.

        Args:
            owner: The tool that they are for, for messages.
            hosts: Names of hosts.
            ports: Ports.
            networks: As `10.1.0.0/16`.

        Raises:
            ConfigError: A network cannot be read.
        """
        try:
            inner = tuple(ipaddress.ip_network(network) for network in networks)
        except ValueError as error:
            raise ConfigError(
                f"{owner}: {error}",
                hint="write networks like 10.1.0.0/16",
            ) from None
        names = frozenset(host.lower() for host in hosts)
        return cls(names, frozenset(ports), inner)

    def target(self, url: str) -> Target:
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
        if not _can_be_looked_up(host):
            raise ToolError(
                "the host is longer than a name can be",
                hint="names have at most 253 characters, 63 between two dots",
            )
        if not self._may_ask(host):
            raise ToolError(
                f"the host {host} is not allowed",
                hint="use another host; who set this tool up may add it to its `hosts`",
            )
        secure = parts.scheme == "https"
        port = (443 if secure else 80) if port is None else port
        if port not in self.ports:
            raise ToolError(
                f"the port {port} is not allowed",
                hint="use another port; who set this tool up may add it to its `ports`",
            )
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return Target(url, secure, host, port, path)

    def _may_ask(self, host: str) -> bool:
        if "*" in self.hosts or host in self.hosts:
            return True
        labels = host.split(".")
        above = (".".join(labels[start:]) for start in range(1, len(labels)))
        return any(f"*.{name}" in self.hosts for name in above)

    def addresses(self, target: Target) -> list[str]:
        """Look a host up and return its addresses if every one may be reached.

        Raises:
            ToolError: One may not, or there are none.
        """
        try:
            found = socket.getaddrinfo(
                target.host, target.port, type=socket.SOCK_STREAM
            )
        except (OSError, UnicodeError):
            raise ToolError(
                f"the host {target.host} has no address", hint="check its spelling"
            ) from None
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        for text in addresses:
            address = ipaddress.ip_address(text.partition("%")[0])
            known = any(_within(address, network) for network in self.networks)
            if not known and not is_public_address(address):
                raise ToolError(
                    f"the host {target.host} is not on the public internet",
                    hint="ask a public host",
                )
        return addresses[:MAX_ADDRESSES]


def _can_be_looked_up(host: str) -> bool:
    return len(host) <= MAX_NAME and max(map(len, host.split("."))) <= MAX_LABEL


def _within(address: _IPAddress, network: _IPNetwork) -> bool:
    return address.version == network.version and address in network
