"""Finds a text in the usual spellings of a message, and writes another over it."""

from __future__ import annotations

import base64
from urllib.parse import quote


def spellings(text: str) -> tuple[bytes, ...]:
    """Return the ways in which messages carry an ASCII text, each of them once.

    They are the text itself, percent escapes, JSON's escapes, hexadecimal digits, and
    base64 wherever the text begins in what is encoded.
    """
    data = text.encode()
    found = [data, quote(text, safe="").encode(), data.replace(b"/", b"\\/")]
    found += [b"".join(b"%%%02X" % each for each in data)]
    found += [b"".join(b"%%%02x" % each for each in data)]
    found += [b"".join(b"\\u%04x" % each for each in data)]
    found += [data.hex().encode(), data.hex().upper().encode()]
    for shift in range(3):
        code = base64.b64encode(bytes(shift) + data)
        # The characters at the ends depend on what is beside the text.
        first, last = -(-shift * 8 // 6), (shift + len(data)) * 8 // 6
        found += [code[first:last], code[first:last].translate(_URL_SAFE)]
    return tuple(dict.fromkeys(found))


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class Finder:
    """Finds texts in a stream of bytes, also over the borders of its pieces.

    Args:
        texts: The spellings to find.
    """

    def __init__(self, texts: tuple[bytes, ...]) -> None:
        self._texts = texts
        self._left = max(map(len, texts), default=1) - 1
        self._seen = b""

    def found(self, data: bytes) -> bool:
        """Return True if one of them ends in the next bytes of the stream."""
        data = self._seen + data
        self._seen = data[-self._left :] if self._left else b""
        return any(each in data for each in self._texts)


class Mask:
    """Writes other bytes of the same length over texts in a stream.

    It keeps back no more than what may be the beginning of a text.

    Args:
        texts: What to write over, and what to write; equal in length.
    """

    def __init__(self, texts: dict[bytes, bytes]) -> None:
        self._texts = texts
        self._held = b""

    @property
    def hides(self) -> bool:
        """True if there is anything to write over."""
        return bool(self._texts)

    def next(self, data: bytes) -> bytes:
        """Return the bytes that may be shown once `data` has come."""
        if not self._texts:
            return data
        data = self.whole(self._held + data)
        size = max((_overlap(data, each) for each in self._texts), default=0)
        self._held = data[len(data) - size :]
        return data[: len(data) - size]

    def end(self) -> bytes:
        """Return what was kept back, at the end of the stream."""
        held, self._held = self._held, b""
        return held

    def whole(self, data: bytes) -> bytes:
        """Return all of a short text with nothing to be seen in it."""
        for text, shown in self._texts.items():
            if text in data:
                data = data.replace(text, shown)
        return data


def _overlap(data: bytes, text: bytes) -> int:
    """Return the size of the longest end of `data` that begins a text."""
    start = max(len(data) - len(text) + 1, 0)
    while (start := data.find(text[:1], start)) >= 0:
        if text.startswith(data[start:]):
            return len(data) - start
        start += 1
    return 0
