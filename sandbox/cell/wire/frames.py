"""Frames: the one wire format between the host and a cell.

A frame is two unsigned 32-bit big-endian lengths, a JSON object (the header)
and raw bytes (the payload). Both lengths are checked against a cap before a
byte of them is kept, in either direction.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from itertools import accumulate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


PROTOCOL_VERSION = 1

MAX_HEADER_BYTES = 256 * 1024
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024

MAX_JSON_DEPTH = 128
"""Lists and objects inside each other. When it is reached the text is refused."""

MAX_JSON_DIGITS = 4300
"""Digits of a whole number. When it is reached the text is refused."""

CALLS_AHEAD = 2
"""Calls of a program that reach the host before one of them is answered, for each that
may be at work there at once. When it is reached further ones wait in the program's own
socket, or in node."""

MAX_ARTIFACTS = 64
MAX_ARTIFACT_BYTES = 16 * 1024 * 1024
"""Artifacts of one run: their number, and their bytes together. When either is reached
the others are left out, and named."""

COLLECT_SECONDS = 5.0
"""Seconds of looking for artifacts after a program's report. When they are over the
others are left out, and named."""

RUN_DEFAULTS: dict[str, Any] = {
    "code_bytes": None,
    "language": "python",
    "memory_mib": 0,
    "cpu_seconds": None,
    "stop_at_output_limit": False,
    "watch_memory_bytes": 0,
    "restricted": None,
    "final": False,
    "again": False,
    "branch": None,
    "streamed": False,
    "tools": [],
    "calls_at_once": 8,
    "max_calls": 100,
    "packages": "",
    "network": None,
    "variables": {},
    "inputs_file": "",
}
"""Default header fields of a `run` request. With `code_bytes` None the payload is code
only: no inputs follow it. `inputs_file` is a file of the work dir with more of them;
empty: there are none."""

REPORT_DEFAULTS: dict[str, Any] = {
    "reason": None,
    "wait_status": None,
    "state": None,
    "lost": None,
    "oom_kills": 0,
    "oom_total": 0,
    "layers": None,
    "setup_error": None,
    "artifacts": False,
    "clean": False,
    "outputs_left": 0,
}
"""Default header fields of a `finished` frame, the supervisor's report of a run. With
`layers` None the layers of an earlier report still hold. Where there are artifacts they
follow the report, and after them the names of those that were left out. `oom_total`
counts the kills for memory of the whole cell, `oom_kills` those of the run."""

# What is larger is not gathered piece by piece.
_LARGE_BYTES = 64 * 1024

_LENGTHS = struct.Struct(">II")

_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(each for each in range(256) if each not in _STEPS)


class FrameError(ValueError):
    """The bytes on the channel are not a frame of this protocol."""


class Frame:
    """One message: a JSON object (the header), its text, and raw bytes (the payload).

    Frames with the same text share one header object, so it must not be changed.
    """

    __slots__ = ("header", "payload", "text")

    def __init__(self, header: dict[str, Any], text: bytes, payload: bytes) -> None:
        self.header = header
        self.text = text
        self.payload = payload


def omit_defaults(header: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the header fields that differ from their defaults."""
    return {
        name: value
        for name, value in header.items()
        if name not in defaults or value != defaults[name]
    }


def encode(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """Return the bytes of one frame.

    Raises:
        FrameError: The header or the payload is larger than its cap.
    """
    return frame_prefix(encode_header(header), len(payload)) + payload


def encode_header(header: dict[str, Any]) -> bytes:
    """Return the JSON text of a header."""
    return _encoder.encode(header).encode()


def frame_prefix(text: bytes, payload_bytes: int) -> bytes:
    """Return the bytes of a frame that come before its payload.

    Args:
        text: The header, by `encode_header`.
        payload_bytes: The size of the payload that follows.

    Raises:
        FrameError: The header or the payload is larger than its cap.
    """
    if len(text) > MAX_HEADER_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise FrameError(f"frame of {len(text)} + {payload_bytes} bytes is too large")
    return _LENGTHS.pack(len(text), payload_bytes) + text


def strict_json(text: bytes) -> Any:
    """Return the value of a JSON text that has exactly one meaning.

    The rule is that of `core.read_json`; cells have only the standard library, so they
    need this implementation of it.

    Raises:
        FrameError: The text is not such JSON.
    """
    try:
        if _is_deep(text):
            raise ValueError("nested too deeply")
        # Not `decode`, which looks for spaces by regular expressions.
        decoded = text.decode("utf-8").strip(" \t\n\r")
        value, end = _decoder.raw_decode(decoded)
        if end != len(decoded):
            raise ValueError("more than one value")
        if b"\\u" in text:
            # A lone surrogate decodes from its escape but can be written nowhere.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not valid JSON: {error}") from None
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is given twice")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _whole(text: str) -> int:
    if len(text) - text.startswith("-") > MAX_JSON_DIGITS:
        raise ValueError(f"a number has more than {MAX_JSON_DIGITS} digits")
    return int(text)


def _finite(text: str) -> float:
    """Return a number that JSON can express again: 1e999 would become infinity."""
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is out of range")
    return number


def _is_deep(text: bytes) -> bool:
    """Return True if a text is nested too deeply to be parsed.

    At the parser's own limit Python may finalize other objects, and fails at that.
    """
    if text.count(b"[") + text.count(b"{") <= MAX_JSON_DEPTH:
        return False
    text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(text.split(b'"')[::2]).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, outside)), default=0) > MAX_JSON_DEPTH


# Python's own limit can be configured, and older versions have none.
_digits = getattr(sys, "get_int_max_str_digits", int)()
_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_decoder = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_constant=_no_constant,
    parse_float=_finite,
    parse_int=int if _digits == MAX_JSON_DIGITS else _whole,
)


class FrameDecoder:
    """Turns a stream of bytes into frames; keeps at most one unfinished frame.

    The rest of a large payload can be read straight into its buffer: read into `room`
    and call `filled`, in place of `feed`.

    Args:
        max_payload_bytes: Cap on a payload; a frame beyond it is refused unread.
    """

    def __init__(self, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self._buffer = bytearray()
        self._max_payload_bytes = max_payload_bytes
        # The header and payload of a large frame, and how much of it is there.
        self._header: dict[str, Any] | None = None
        self._payload = bytearray()
        self._size = self._have = 0
        # The last header: the next one is often the same.
        self._text = b""
        self._parsed: dict[str, Any] | None = None

    def room(self) -> memoryview | None:
        """Return the buffer for the next bytes; None if they must go through `feed`."""
        if self._header is None:
            return None
        return memoryview(self._payload)[self._have : self._size]

    def filled(self, count: int) -> list[Frame]:
        """Count bytes read into `room`; return the frame if it is now complete."""
        self._have += count
        if self._header is None or self._have < self._size:
            return []
        payload = bytes(memoryview(self._payload)[: self._size])
        frame = Frame(self._header, self._text, payload)
        self._header = None
        return [frame]

    @property
    def lacking(self) -> int:
        """The bytes that a small frame which has begun lacks, or its lengths do."""
        have = len(self._buffer)
        if have < _LENGTHS.size:
            return _LENGTHS.size - have
        header_size, payload_size = _LENGTHS.unpack_from(self._buffer)
        size: int = _LENGTHS.size + header_size + payload_size
        return size - have

    def feed(self, data: bytes) -> list[Frame]:
        """Add bytes and return the frames that are now complete.

        Raises:
            FrameError: A length is over its cap or a header is no JSON object.
        """
        frames: list[Frame] = []
        room = self.room()
        if room is not None:
            piece = data[: len(room)]
            room[: len(piece)] = piece
            frames += self.filled(len(piece))
            data = data[len(piece) :]
        self._buffer += data
        while self._header is None:
            frame = self._next()
            if frame is None:
                break
            frames.append(frame)
        return frames

    def _next(self) -> Frame | None:
        buffer = self._buffer
        if len(buffer) < _LENGTHS.size:
            return None
        header_size, payload_size = _LENGTHS.unpack_from(buffer)
        if header_size > MAX_HEADER_BYTES or payload_size > self._max_payload_bytes:
            raise FrameError(f"frame of {header_size} + {payload_size} bytes refused")
        header_end = _LENGTHS.size + header_size
        end = header_end + payload_size
        large = payload_size > _LARGE_BYTES
        if len(buffer) < (header_end if large else end):
            return None
        text = bytes(buffer[_LENGTHS.size : header_end])
        if self._parsed is None or text != self._text:
            header = strict_json(text)
            if not isinstance(header, dict) or not isinstance(header.get("type"), str):
                raise FrameError("a frame header must be an object with a type")
            self._text, self._parsed = text, header
        if len(buffer) < end:
            self._begin_large(self._parsed, payload_size, header_end)
            return None
        payload = bytes(buffer[header_end:end])
        del buffer[:end]
        return Frame(self._parsed, text, payload)

    def _begin_large(
        self, header: dict[str, Any], payload_size: int, header_end: int
    ) -> None:
        if len(self._payload) < payload_size:
            self._payload = bytearray(payload_size)
        self._header, self._size = header, payload_size
        self._have = len(self._buffer) - header_end
        self._payload[: self._have] = self._buffer[header_end:]
        self._buffer.clear()
