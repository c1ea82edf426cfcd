"""Finds a text in the usual spellings of a message, and writes another over it."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from urllib.parse import quote


def spellings(text: str) -> tuple[bytes, ...]:
    """Return the ways in which messages usually carry a text, each of them once.

    They are the text itself, percent escapes, the escapes of `/`, `+` and `=` that
    writers of JSON use, hexadecimal digits, and base64 wherever the text begins in what
    is encoded. Others, and a mixture of them, are not among them.

    Args:
        text: Of letters, digits and `.`, `_`, `~`, `+`, `/`, `=`, `:`, `-`.
    """
    data = text.encode()
    found = [data, *(data.replace(*escape) for escape in _IN_JSON)]
    found += [data.hex().encode(), data.hex().upper().encode()]
    for safe in ("", "/"):
        escaped = quote(text, safe=safe)
        found.append(escaped.encode())
        found.append(_ESCAPE.sub(lambda each: each[0].lower(), escaped).encode())
    for shift in range(3):
        code = base64.b64encode(bytes(shift) + data)
        # The characters at the ends depend on what is beside the text.
        first, last = -(-shift * 8 // 6), (shift + len(data)) * 8 // 6
        found += [code[first:last], code[first:last].translate(_URL_SAFE)]
    return tuple(dict.fromkeys(found))


_ESCAPE = re.compile("%..")
# PHP escapes the first, .NET the second, Gson the third.
_IN_JSON = (b"/", b"\\/"), (b"+", b"\\u002B"), (b"=", b"\\u003d")
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
        return any(text in data for text in self._texts)


class Mask:
    """Writes other bytes of the same length over texts in a stream.

    It keeps back as many bytes as the longest text has, less one, whatever they are: a
    program that sends guesses for a server to return would see from what is kept back
    how much of a guess is right.

    Args:
        texts: What to write over, and what to write; equal in length.
        refresh: Changes `texts` if they have to be others by now.
    """

    def __init__(
        self,
        texts: Mapping[bytes, bytes],
        refresh: Callable[[], object] | None = None,
    ) -> None:
        self._texts = texts
        self._refresh = refresh
        self._held = b""

    def refresh(self) -> None:
        """Write over what there is now; `next` and `end` do so by themselves."""
        if self._refresh is not None:
            self._refresh()

    @property
    def hides(self) -> bool:
        """True if there is anything to write over."""
        return bool(self._texts)

    def next(self, data: bytes) -> bytes:
        """Return the bytes that may be shown once `data` has come."""
        self.refresh()
        data = self.whole(self._held + data)
        keeps = max(map(len, self._texts), default=1) - 1
        shown = max(len(data) - keeps, 0)
        self._held = data[shown:]
        return data[:shown]

    def end(self) -> bytes:
        """Return what was kept back, at the end of the stream."""
        self.refresh()
        held, self._held = self.whole(self._held), b""
        return held

    def whole(self, data: bytes) -> bytes:
        """Return all of a short text with nothing to be seen in it."""
        for text, shown in self._texts.items():
            if text in data:
                # Where a body is full of them `bytes.replace` takes twice as long: it
                # prepares its search anew behind each.
                data = shown.join(re.split(re.escape(text), data))
        return data
