"""Hosts in arguments: in URLs that have one reading only, and in any text."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import re
import socket
import stringprep
from collections.abc import Iterator, Mapping
from functools import lru_cache
from unicodedata import ucd_3_2_0
from urllib.parse import unquote, urlsplit

from .readings import normalized, visible

HOST = re.compile(
    r"(\*\.)?(?!-)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*(:[0-9]{1,5})?"
    r"|\[[0-9a-f:.]+\](:[0-9]{1,5})?"
)
"""A host of a rule, in lower case."""

_PORTS = {"http": 80, "https": 443}
_UNCLEAR = re.compile(r"[^\x21-\x7e]|\\")
_DECODINGS = 8
_LONG_TEXT = 65_536
"""Characters of a text that is decoded twice. When it is reached and there is more to
decode, the text counts as a mention."""

# No run of characters is tried from its middle. The group is atomic: a possessive
# one takes a dot too many before Python 3.11.5.
_NAMED = re.compile(r"[\w\ufffd-]++(?>(?:\.[\w\ufffd-]++)*)")
_WORD = re.compile(r"[^\s/@:?#\[\]\"'<>(),;=&\\]+")
_NUMBERS = re.compile(r"[0-9][0-9a-fx.]*+")
_IPV6 = re.compile(r"[0-9a-f:.]++")
_IPV6_CHARACTERS = 45
_NAME_CHARACTERS = 253
PIECE = 50_000
"""Characters of a text that are read at once. When it is reached a text is parted where
no name can be; a longer one with no such place counts as a mention."""

_BETWEEN_NAMES = " /@?#[]\"'<>(),;=&\\!$*+^`{|}~\u3001\uff0c"
_DROPPED_BY_URLS = str.maketrans("", "", "\t\r\n")


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

    It takes linear time: of a name only the last labels are looked at, as many as
    the longest of the hosts has.

    Args:
        hosts: Host names as rules write them.
    """

    def __init__(self, hosts: tuple[str, ...]) -> None:
        bare = [re.sub(r":[0-9]+\Z", "", host.removeprefix("*.")) for host in hosts]
        self._names = frozenset(host for host in bare if not host.startswith("["))
        labels = [name.split(".") for name in self._names]
        self._depth = max(map(len, labels), default=0)
        self._in_ascii = {
            spelled: label
            for label in itertools.chain.from_iterable(labels)
            for spelled in _in_unicode(label)
        }
        addresses = set(
            filter(None, map(_address, (host.strip("[]") for host in bare)))
        )
        self._ipv6 = frozenset(address.packed for address in addresses)
        spelled = [_spellings(address) for address in addresses if address.ipv4_mapped]
        self._ipv4 = re.compile("|".join(spelled)) if spelled else None

    def __call__(self, value: object) -> bool:
        return any(map(self._in_text, _texts(value)))

    def _in_text(self, text: str) -> bool:
        decodings = _DECODINGS if len(text) < _LONG_TEXT else 2
        return any(self._in_piece(piece, decodings) for piece in _pieces(text))

    def _in_piece(self, text: str, decodings: int) -> bool:
        if len(text) > PIECE:
            return True
        for _ in range(decodings):
            if any(map(self._in_reading, self._readings(text))):
                return True
            decoded = unquote(text) if "%" in text else text
            if decoded == text:
                return False
            text = decoded
        return True

    def _readings(self, text: str) -> Iterator[str]:
        """Yield a text as resolvers read it: one case, one form, nothing invisible."""
        yield text.lower()
        if not text.isprintable():
            yield text.translate(_DROPPED_BY_URLS).lower()
        if text.isascii():
            return
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        for kept in {text, text.translate(_DROPPED_BY_URLS)}:
            # IDNA of 2003 writes the sharp s and the final sigma as other letters.
            yield _plain(kept.lower())
            yield _plain(kept.casefold())
            if self._in_ascii:
                yield _as_in_2003(kept)

    def _in_reading(self, text: str) -> bool:
        found = _NAMED.findall(text)
        if self._in_ascii and not text.isascii():
            found += _WORD.findall(text)
        if "\ufffd" in text and any("\ufffd" in x and "." in x for x in found):
            return True
        names = {each[-_NAME_CHARACTERS:] for each in found}
        if any(map(self._is_named, names)):
            return True
        if self._ipv4 and any(map(self._ipv4.search, set(_NUMBERS.findall(text)))):
            return True
        if not self._ipv6 or ":" not in text:
            return False
        return any(map(self._is_ipv6, set(_IPV6.findall(text))))

    def _is_named(self, name: str) -> bool:
        labels = name.rstrip(".").rsplit(".", self._depth)[-self._depth :]
        if self._in_ascii and not name.isascii():
            labels = [self._in_ascii.get(label, label) for label in labels]
        return any(
            ".".join(labels[start:]) in self._names for start in range(len(labels))
        )

    def _is_ipv6(self, text: str) -> bool:
        text = text.rstrip(".")
        if ":" not in text or len(text) > _IPV6_CHARACTERS:
            return False
        with contextlib.suppress(OSError):
            return socket.inet_pton(socket.AF_INET6, text) in self._ipv6
        return False


def _pieces(text: str) -> Iterator[str]:
    """Yield the parts of a text, none longer than `PIECE` where that can be."""
    start = 0
    while len(text) - start > PIECE:
        until = start + PIECE
        end = 1 + max(text.rfind(name, start, until) for name in _BETWEEN_NAMES)
        if end <= start:
            break
        yield text[start:end]
        start = end
    yield text[start:]


def _in_unicode(label: str) -> Iterator[str]:
    """Yield the letters that a label in punycode stands for."""
    if label.startswith("xn--"):
        with contextlib.suppress(UnicodeError):
            yield label.removeprefix("xn--").encode().decode("punycode").lower()


def _plain(folded: str) -> str:
    return visible(visible(folded).lower()).replace("\u3002", ".")


def _as_in_2003(text: str) -> str:
    """Return a text as IDNA of 2003 maps it, by the tables of its Unicode."""
    kept = "".join(map(_mapped_in_2003, text))
    return normalized(ucd_3_2_0.normalize, kept).replace("\u3002", ".")


@lru_cache(maxsize=4096)
def _mapped_in_2003(character: str) -> str:
    if stringprep.in_table_b1(character):
        return ""
    return stringprep.map_table_b2(character)


def _address(text: str) -> ipaddress.IPv6Address | None:
    """Return the address that a host of a rule is, one of IPv4 mapped to IPv6."""
    with contextlib.suppress(ValueError):
        return ipaddress.IPv6Address(text)
    with contextlib.suppress(OSError):
        return ipaddress.IPv6Address(b"\0" * 10 + b"\xff\xff" + socket.inet_aton(text))
    return None


def _spellings(address: ipaddress.IPv6Address) -> str:
    """Return a pattern for an IPv4 address, however C libraries let it be written.

    That is in one to four parts, of which the last is for all bytes that are left, each
    in decimal, octal or hexadecimal.
    """
    data = address.packed[-4:]
    forms = []
    for parts in range(4):
        numbers = [*data[:parts], int.from_bytes(data[parts:])]
        forms.append(r"\.".join(map(_number, numbers)))
    return rf"(?<![0-9])(?:{'|'.join(forms)})(?!\.[0-9])"


def _number(value: int) -> str:
    return rf"(?:(?:0x0*+{value:x})(?![0-9a-f])|(?:0++{value:o}|{value})(?![0-9]))"


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield str(name)
            yield from _texts(each)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
