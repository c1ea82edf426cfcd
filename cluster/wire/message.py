"""Messages of a link: JSON fields and raw bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from toolcell.core import InvalidInputError
from toolcell.core.text.strict_json import read_json

MAX_MESSAGE_BYTES = 512 * 1024 * 1024
"""Bytes of one message. When it is reached the sender refuses it, and a receiver ends
the link."""

_LENGTH = struct.Struct(">I")
_MESSAGE_BYTES = 1000
# Not as ASCII: half a surrogate pair must fail here, since no reader takes it.
_encode = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False
).encode


class WireError(Exception):
    """The peer does not speak this protocol."""


@dataclass(frozen=True, slots=True)
class WireMessage:
    """One message of an exchange; a repr shows nothing of it, as it may hold secrets.

    `fields` are JSON values by name; `blobs` are the bytes that go with them.
    """

    fields: dict[str, Any] = field(repr=False)
    blobs: tuple[bytes, ...] = field(default=(), repr=False)
    size: int = 0
    """Bytes that it takes, about."""


def encode_message(fields: dict[str, Any], blobs: Sequence[bytes] = ()) -> bytes:
    """Return the bytes of a message.

    Raises:
        InvalidInputError: It is too large, or a field is not JSON.
    """
    try:
        text = _encode([fields, [len(blob) for blob in blobs]]).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"this cannot travel to a node: {error}", hint="pass JSON values"
        ) from None
    size = _LENGTH.size + len(text) + sum(map(len, blobs))
    if size > MAX_MESSAGE_BYTES:
        raise InvalidInputError(
            f"{size} bytes are too many for a node, the limit is {MAX_MESSAGE_BYTES}",
            hint="pass large data as files of a session",
        )
    return b"".join((_LENGTH.pack(len(text)), text, *blobs))


def decode_message(data: bytes) -> WireMessage:
    """Return the message of its bytes. Raises WireError."""
    try:
        [size] = _LENGTH.unpack_from(data)
        start = _LENGTH.size + size
        fields, sizes = read_json(data[_LENGTH.size : start])
        if not isinstance(fields, dict) or start + sum(sizes) != len(data):
            raise ValueError("its parts do not add up")
        blobs = []
        for length in sizes:
            if type(length) is not int or length < 0:
                raise ValueError("a part has no size")
            blobs.append(data[start : start + length])
            start += length
    except (struct.error, TypeError, ValueError) as error:
        raise WireError(f"a message cannot be read: {error}") from None
    return WireMessage(fields, tuple(blobs), len(data) + _MESSAGE_BYTES)
