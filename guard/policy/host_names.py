"""Hosts in arguments: in URLs that have one reading only, and in any text."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from urllib.parse import unquote, urlsplit

HOST = re.compile(
    r"(\*\.)?(?!-)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*(:[0-9]{1,5})?"
    r"|\[[0-9a-f:.]+\](:[0-9]{1,5})?"
)
"""A host of a rule, in lower case."""

_PORTS = {"http": 80, "https": 443}
_UNCLEAR = re.compile(r"[^\x21-\x7e]|\\")
_DECODINGS = 8
_NAMED = re.compile(r"[\w\ufffd-]+(?:\.[\w\ufffd-]+)*")
_WORD = re.compile(r"[^\s/@:?#\[\]\"'<>(),;=&\\]+")
_IPV6 = re.compile(r"[0-9a-f]*:[0-9a-f:.]+")
_NUMBERS = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+)){0,3}")
_DROPPED_BY_URLS = str.maketrans("", "", "\t\r\n")
# Characters that resolvers ignore beside format characters: RFC 3454 B.1, UTS 46.
_IGNORED = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u1806\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)


def url_host(value: object) -> tuple[str, int] | None:
    """Return host and port of a URL that has one reading only, else None."""
    if not isinstance(value, str) or _UNCLEAR.search(value):
        return None
    try:
        parts = urlsplit(value)
        host, port = (parts.hostname or "").removesuffix("."), parts.port
    except ValueError:
        return None
    usual = _PORTS.get(parts.scheme)
    if usual is None or not host or parts.netloc.count("@") or "%" in parts.netloc:
        return None
    if not value.lower().startswith(f"{parts.scheme}://"):
        return None
    if ":" in host:
        host = f"[{ipaddress.IPv6Address(host).compressed}]"
    elif not HOST.fullmatch(host) or _odd_number(host):
        return None
    return host, usual if port is None else port


def _odd_number(host: str) -> bool:
    """Return whether some program may read a host as an address in an odd notation."""
    last = host.rpartition(".")[2]
    if not (last.isdigit() or last.startswith("0x")):
        return False
    try:
        return str(ipaddress.IPv4Address(host)) != host
    except ValueError:
        return True


def host_in(value: object, hosts: tuple[str, ...]) -> bool | None:
    """Return whether a URL is on one of some hosts; None if it is ambiguous."""
    found = url_host(value)
    if found is None:
        return None
    host, port = found
    for entry in hosts:
        name, colon, wanted = entry.rpartition(":")
        if not colon or entry.endswith("]"):
            name, wanted = entry, ""
        if int(wanted) == port if wanted else port in _PORTS.values():
            below = name.startswith("*.") and host.endswith(name[1:])
            if below or host == name:
                return True
    return False


class Mentions:
    """Tells whether a value names one of some hosts, or one below it.

    Args:
        hosts: Host names as rules write them.
    """

    def __init__(self, hosts: tuple[str, ...]) -> None:
        bare = [re.sub(r":[0-9]+\Z", "", host.removeprefix("*.")) for host in hosts]
        self._names = frozenset(host for host in bare if not host.startswith("["))
        inside = [host.strip("[]") for host in bare]
        self._addresses = frozenset(filter(None, map(_address, inside)))

    def __call__(self, value: object) -> bool:
        return any(map(self._in_text, _texts(value)))

    def _in_text(self, text: str) -> bool:
        for _ in range(_DECODINGS):
            if any(map(self._in_reading, _readings(text))):
                return True
            decoded = unquote(text) if "%" in text else text
            if decoded == text:
                return False
            text = decoded
        return True

    def _in_reading(self, text: str) -> bool:
        for found in _NAMED.findall(text):
            if "\ufffd" in found and "." in found:
                return True
            if not found.isascii():
                found = _ascii(found)
            if not self._names.isdisjoint(_with_parents(found)):
                return True
        if not self._addresses:
            return False
        written = _NUMBERS.findall(text) + _IPV6.findall(text)
        return not self._addresses.isdisjoint(map(_address, written))


def _readings(text: str) -> Iterator[str]:
    """Yield a text as resolvers read it: one case, one form, nothing invisible."""
    yield text.lower()
    if not text.isprintable():
        yield text.translate(_DROPPED_BY_URLS).lower()
    if text.isascii():
        return
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    for kept in {text, text.translate(_DROPPED_BY_URLS)}:
        # IDNA of 2003 writes the sharp s and the final sigma as other letters.
        yield _plain(kept.lower)
        yield _plain(kept.casefold)
    for word in {each for each in _WORD.findall(text) if not each.isascii()}:
        with contextlib.suppress(UnicodeError):
            yield word.encode("idna").decode("ascii").lower()


def _plain(folded: Callable[[], str]) -> str:
    form = unicodedata.normalize("NFKC", folded())
    form = unicodedata.normalize("NFKC", form.lower()).replace("\u3002", ".")
    return "".join(c for c in _IGNORED.sub("", form) if unicodedata.category(c) != "Cf")


@lru_cache(maxsize=1024)
def _ascii(name: str) -> str:
    """Return a name as the DNS has it."""
    labels = (
        label if label.isascii() else f"xn--{label.encode('punycode').decode()}"
        for label in name.split(".")
    )
    return ".".join(labels)


def _with_parents(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.partition(".")[2]


def _address(text: str) -> str | None:
    """Return the one spelling of an address, however C libraries let it be written."""
    with contextlib.suppress(ValueError):
        found = ipaddress.IPv6Address(text)
        return str(found.ipv4_mapped or found)
    with contextlib.suppress(OSError, ValueError):
        return str(ipaddress.IPv4Address(socket.inet_aton(text)))
    return None


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield str(name)
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
