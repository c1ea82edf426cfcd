"""Rules for the hosts that programs may reach, and the one parser of host names."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping

from toolcell.core.addresses import is_public_address

from ..cell.wire.aliases import HOSTS

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
# What resolvers take for a number: 2130706433, 0177.0.0.1 and 0x7f.1 are addresses.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_MAX_NAME = 253
_MAX_NAMED = 64
DEFAULT_PORTS = {"http": 80, "https": 443}
"""The port of a URL without one, by its scheme."""

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "cell")  # noqa: S104
"""The names of a cell's own interfaces."""


def read_host(text: str) -> str:
    """Return the canonical spelling of a host name or an address.

    Raises:
        ValueError: It is neither.
    """
    if not text.isascii():
        raise ValueError(f"{text!r} is not ASCII; write names as xn--...")
    host = text.lower().removesuffix(".")
    if ":" in host:
        return _ipv6(host)
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise ValueError(f"{text!r} is a number, and no dotted address") from None
    if len(host) > _MAX_NAME or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError(f"{text[:100]!r} is not a host")
    return host


def _ipv6(text: str) -> str:
    if "%" in text:
        raise ValueError("an address with a zone reaches no host")
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError:
        raise ValueError(f"{text[:100]!r} is not an address") from None


def read_authority(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Return host and port of `host:port` or `[address]:port`.

    Raises:
        ValueError: It is not of that form, or has no port and there is no default.
    """
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):
        if default_port is None:
            raise ValueError(f"{text[:100]!r} has no port; write host:port")
        host, port = text, str(default_port)
    if host.startswith("[") and host.endswith("]"):
        host = _ipv6(host[1:-1].lower())
    elif ":" in host:
        raise ValueError(f"write [address]:port for {text[:100]!r}")
    else:
        host = read_host(host)
    # No sign, no space, no other digits than ASCII's.
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise ValueError(f"{port[:100]!r} is not a port")
    return host, int(port)


def write_authority(host: str, port: int) -> str:
    """Return host and port as `read_authority` reads them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_rule(text: str) -> tuple[str, int]:
    """Return host and port of a rule; the host may begin with `*.`.

    Raises:
        ValueError: It is not a rule.
    """
    above = text.removeprefix("*.")
    host, port = read_authority(above)
    if above == text:
        return host, port
    if is_address(host):
        raise ValueError(f"{text!r}: an address has nothing below it")
    return f"*.{host}", port


def loopback_addresses(hosts: Iterable[str]) -> dict[str, str]:
    """Return an address of a cell's loopback for each name that rules name exactly.

    Raises:
        ValueError: One of them is not a rule.
    """
    named = {host for host, _ in map(read_rule, hosts)}
    names = sorted(
        host
        for host in named.difference(LOOPBACK_NAMES)
        if not host.startswith("*.") and not is_address(host)
    )
    return {
        name: f"127.77.{number >> 8}.{number & 255}"
        for number, name in enumerate(names[:_MAX_NAMED], 1)
    }


def hosts_file(hosts: Iterable[str]) -> str:
    """Return the text of /etc/hosts in cells whose programs may reach these hosts.

    Raises:
        ValueError: One of them is not a rule.
    """
    found = loopback_addresses(hosts).items()
    return HOSTS + "".join(f"{address} {name}\n" for name, address in found)


def is_address(host: str) -> bool:
    """Return True if a canonical host is an address, and not a name."""
    return ":" in host or host.rpartition(".")[2].isdigit()


class HostRules:
    """An allow-list of hosts and ports.

    Args:
        hosts: Rules as `read_rule` reads them.
        any_host: True if every host may be reached. Addresses that are not public
            still have to be named.

    Raises:
        ValueError: One of them is not a rule.
    """

    def __init__(self, hosts: Iterable[str], *, any_host: bool = False) -> None:
        self._rules = frozenset(read_rule(host) for host in hosts)
        self._any_host = any_host

    def listeners(self, addresses: Mapping[str, str]) -> list[tuple[str, int, str]]:
        """Return address, port and host of the rules whose host has an address."""
        exact = ((host, port) for host, port in sorted(self._rules))
        return [
            (addresses[host], port, host) for host, port in exact if host in addresses
        ]

    def allow(self, host: str, port: int) -> bool:
        """Return True if a canonical host, or every host of a rule, may be reached."""
        if self.names(host, port):
            return True
        is_reachable = not is_address(host) or self.allow_address(host, port)
        return self._any_host and is_reachable

    def names(self, host: str, port: int) -> bool:
        """Return True if a rule names a canonical host, or every host of a rule."""
        return any((name, port) in self._rules for name in (host, *_above(host)))

    def allow_address(self, address: str, port: int) -> bool:
        """Return True if a connection may go to an address, whatever name led there."""
        found = ipaddress.ip_address(address)
        return is_public_address(found) or (str(found), port) in self._rules

    def without_proxy(self) -> str:
        """Return the hosts that need no proxy, with commas: those of the cell itself.

        A loopback host that a rule names is the one of this machine, not of the cell.
        """
        named = {host for host, _ in self._rules}
        own = [name for name in LOOPBACK_NAMES if name not in named]
        if not any(host.startswith("127.") for host in named):
            # Some clients know no ranges, and Debian has a machine's name at 127.0.1.1.
            own += ["127.0.0.2", "127.0.1.1", "127.0.0.0/8"]
        return ",".join(own)


def _above(host: str) -> Iterator[str]:
    """Yield the wildcards that a name matches."""
    if is_address(host):
        return
    labels = host.split(".")
    for start in range(1, len(labels)):
        yield "*." + ".".join(labels[start:])
