"""Frames: the one wire format between the host and a cell.

A frame is two unsigned 32-bit big-endian lengths, a JSON object (the header)
and raw bytes (the payload). Both lengths are checked against a cap before a
byte of them is kept, in either direction.
"""

from __future__ import annotations

import json
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


PROTOCOL_VERSION = 1

MAX_HEADER_BYTES = 256 * 1024
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024

_LENGTHS = struct.Struct(">II")


class FrameError(ValueError):
    """The bytes on the channel are not a frame of this protocol."""


class Frame:
    """One message: a JSON object and the raw bytes that belong to it."""

    __slots__ = ("header", "payload")

    def __init__(self, header: dict[str, Any], payload: bytes) -> None:
        self.header = header
        self.payload = payload


def encode(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """Return the bytes of one frame.

    Raises:
        FrameError: The header or the payload is larger than its cap.
    """
    text = _encoder.encode(header).encode()
    if len(text) > MAX_HEADER_BYTES or len(payload) > MAX_PAYLOAD_BYTES:
        raise FrameError(f"frame of {len(text)} + {len(payload)} bytes is too large")
    return _LENGTHS.pack(len(text), len(payload)) + text + payload


def strict_json(text: bytes) -> Any:
    """Decode JSON with one meaning: no duplicate keys, no NaN, valid UTF-8.

    Raises:
        FrameError: The text is not such JSON, or is nested too deeply.
    """
    try:
        value = _decoder.decode(text.decode("utf-8"))
        if b"\\u" in text:
            # A lone surrogate decodes from its escape but can be written nowhere.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not valid JSON: {type(error).__name__}") from None
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(name)


_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_decoder = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_no_constant)


class FrameDecoder:
    """Turns a stream of bytes into frames; keeps at most one unfinished frame."""

    def __init__(self, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self._buffer = bytearray()
        self._max_payload_bytes = max_payload_bytes

    def feed(self, data: bytes) -> list[Frame]:
        """Add bytes and return the frames that are now complete.

        Raises:
            FrameError: A length is over its cap or a header is no JSON object.
        """
        self._buffer += data
        frames: list[Frame] = []
        while True:
            frame = self._next()
            if frame is None:
                return frames
            frames.append(frame)

    def _next(self) -> Frame | None:
        buffer = self._buffer
        if len(buffer) < _LENGTHS.size:
            return None
        header_size, payload_size = _LENGTHS.unpack_from(buffer)
        if header_size > MAX_HEADER_BYTES or payload_size > self._max_payload_bytes:
            raise FrameError(f"frame of {header_size} + {payload_size} bytes refused")
        header_end = _LENGTHS.size + header_size
        end = header_end + payload_size
        if len(buffer) < end:
            return None
        header = strict_json(bytes(buffer[_LENGTHS.size : header_end]))
        if not isinstance(header, dict) or not isinstance(header.get("type"), str):
            raise FrameError("a frame header must be an object with a type")
        payload = bytes(buffer[header_end:end])
        del buffer[:end]
        return Frame(header, payload)
