"""Tells public internet addresses from private and special ones."""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import urlsplit

# Azure's virtual machines reach their host under this public-looking address.
_NOT_PUBLIC = frozenset({IPv4Address("168.63.129.16")})
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")


def is_public_address(address: IPv4Address | IPv6Address) -> bool:
    """Return True if an address, however written, belongs to the public internet.

    Not public are private, loopback, link-local, shared, reserved and multicast
    addresses, those at which clouds serve metadata, and IPv6 addresses that carry
    one of these: mapped, 6to4, Teredo, NAT64.
    """
    if isinstance(address, IPv4Address):
        if address in _NOT_PUBLIC:
            return False
        return address.is_global and not address.is_multicast
    inside = address.ipv4_mapped or address.sixtofour
    if address in _NAT64:
        inside = IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.teredo is not None:
        inside = address.teredo[1]
    if inside is not None:
        return is_public_address(inside)
    return address in _GLOBAL_UNICAST and address.is_global


def is_loopback_or_https(url: str) -> bool:
    """Return True if what is sent to a URL cannot be read on the way."""
    parts = urlsplit(url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
