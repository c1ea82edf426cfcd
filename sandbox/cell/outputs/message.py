"""An output as the message that goes to the supervisor.

A message is a letter, a mark of two hexadecimal digits, its size in eight, and a JSON
object: `data` has the representations as texts, `json` names those that are JSON, and
`left` those that were left out.
"""

from __future__ import annotations

import binascii
import json
import re

from ..wire.contract import MAX_OUTPUT_BYTES, MEDIA_TYPE, OUTPUT
from . import previews

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple


_BINARY = ("image/", "audio/", "video/", "application/pdf", "application/octet-stream")
_MAX_METADATA_BYTES = 64 * 1024
_MIME = re.compile(MEDIA_TYPE, re.ASCII)
# For all of a message but its representations.
_MARGIN_BYTES = 128 * 1024
_MAX_NAME = 128


def body_of(data: Dict[str, Any], metadata: Dict[str, Any], *, is_value: bool) -> bytes:
    """Return the JSON of an output; representations that do not fit are left out.

    Small ones are kept rather than large ones.
    """
    texts, as_json, left = _texts(data)
    pieces = {mime: _json(text) for mime, text in texts.items()}
    room = MAX_OUTPUT_BYTES - _MARGIN_BYTES
    preview = previews.preview_of(texts)
    if preview is not None:
        room -= len(preview[1])
    for mime in sorted(pieces, key=lambda mime: len(pieces[mime])):
        room -= len(pieces[mime]) + _MAX_NAME
        if room < 0:
            del pieces[mime]
            left.append(mime)
    fields = {
        "json": [mime for mime in as_json if mime in pieces],
        "left": left[:32],
        "value": is_value,
        "preview": preview,
        "metadata": _metadata(metadata),
    }
    inner = b",".join(_json(mime) + b":" + piece for mime, piece in pieces.items())
    return b'{"data":{' + inner + b"}," + _json(fields)[1:]


def frame(mark: int, body: bytes) -> bytes:
    """Return a message whose arrival is answered by its mark."""
    return OUTPUT + b"%02x%08x" % (mark, len(body)) + body


def _texts(data: Dict[str, Any]) -> Tuple[Dict[str, str], List[str], List[str]]:
    """Return the representations as texts, and the types that are JSON or left out.

    What has no type for a key is no representation.
    """
    texts, as_json, left = {}, [], []
    for mime, content in data.items():
        try:
            if not _MIME.fullmatch(mime):
                continue
            if _is_json(mime, content):
                texts[mime] = _json_text(content)
                as_json.append(mime)
            else:
                texts[mime] = _text(mime, content)
        except Exception:
            if isinstance(mime, str):
                left.append(_whole(mime))
    return texts, as_json, left


def _is_json(mime: str, content: Any) -> bool:
    if isinstance(content, (bytes, bytearray, memoryview)):
        return False
    named = mime == "application/json" or mime.endswith("+json")
    return named or not isinstance(content, str)


def _json_text(content: Any) -> str:
    text = json.dumps(content, allow_nan=False, ensure_ascii=False)
    text.encode("utf-8")
    return text


def _text(mime: str, content: Any) -> str:
    if isinstance(content, str):
        if mime.startswith(_BINARY) and not mime.endswith("+xml"):
            # Base 64, perhaps in lines.
            return _whole("".join(content.split()))
        return _whole(content)
    if mime.startswith("text/") or mime.endswith("+xml"):
        return bytes(content).decode("utf-8", "replace")
    return binascii.b2a_base64(content, newline=False).decode()


def _whole(text: str) -> str:
    """Return text in which halves of surrogate pairs are replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _metadata(metadata: Dict[str, Any]) -> str:
    try:
        text = _json_text(metadata)
        return text if len(text.encode("utf-8")) <= _MAX_METADATA_BYTES else "{}"
    except Exception:
        return "{}"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8")
