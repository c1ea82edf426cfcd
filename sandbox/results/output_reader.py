"""Reads the outputs of one run, which the program may have made up."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from toolcell.core.text.json_size import count_values
from toolcell.core.text.picture_type import picture_type

from ..cell.wire.contract import (
    MAX_OUTPUT_BYTES,
    MAX_OUTPUTS,
    MAX_OUTPUTS_BYTES,
    MAX_RESULT_VALUES,
    MEDIA_TYPE,
)
from ..cell.wire.frames import FrameError, strict_json
from .output import Output, Preview, is_small

MAX_REPRESENTATIONS = 32
"""Representations of one output. When there are more it is dropped as malformed."""

MAX_DEPTH = 100
"""Lists and objects inside each other in a representation in JSON. When it is reached
the representation is left out, and named."""

# A message holds texts: its representations, and the names of types.
_MAX_TEXTS = 8 * MAX_REPRESENTATIONS
_MIME = re.compile(MEDIA_TYPE, re.ASCII)


class OutputReader:
    """Makes outputs of messages, and checks what in them can be checked.

    The values of all JSON in the outputs of a run are at most `MAX_RESULT_VALUES`. When
    it is reached further representations in JSON are left out, and named.
    """

    def __init__(self) -> None:
        self.malformed = 0
        """Messages that were dropped."""

        self._count = self._bytes = 0
        self._values = MAX_RESULT_VALUES

    def read(self, payload: bytes) -> Output | None:
        """Return an output; None if it is malformed.

        Raises:
            FrameError: The cell did not keep the limits of the run.
        """
        self._count += 1
        self._bytes += len(payload)
        most = self._count > MAX_OUTPUTS or self._bytes > MAX_OUTPUTS_BYTES
        if most or len(payload) > MAX_OUTPUT_BYTES:
            raise FrameError("more outputs than the limit")
        if count_values(payload, _MAX_TEXTS) > _MAX_TEXTS:
            self.malformed += 1
            return None
        try:
            return self._to_output(strict_json(payload))
        except (FrameError, KeyError, TypeError, ValueError, AttributeError):
            self.malformed += 1
            return None

    def _to_output(self, message: dict[str, Any]) -> Output:
        if len(message["data"]) > MAX_REPRESENTATIONS:
            raise ValueError("too many representations")
        data: dict[str, Any] = {}
        left = [each for each in map(str, message["left"]) if _MIME.fullmatch(each)]
        for mime, text in message["data"].items():
            if not isinstance(text, str) or not _MIME.fullmatch(mime):
                raise ValueError("not a representation")
            try:
                data[mime] = self._value(mime, text, mime in message["json"])
            except ValueError:
                left.append(mime)
        return Output(
            data=data,
            metadata=self._metadata(message["metadata"]),
            is_value=message["value"] is True,
            left_out=tuple(left[:MAX_REPRESENTATIONS]),
            preview=_preview(message["preview"]),
        )

    def _value(self, mime: str, text: str, is_json: bool) -> Any:
        """Return a representation. Raises ValueError if it is not what it claims."""
        if is_json:
            return self._json(text)
        if mime.startswith("image/") and not mime.endswith("+xml"):
            shown = picture_type(_decoded(text))
            if shown != mime:
                raise ValueError("other bytes than the type says")
        return text

    def _metadata(self, text: Any) -> dict[str, Any]:
        try:
            found = self._json(str(text))
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _json(self, text: str) -> Any:
        data = text.encode()
        count = count_values(data, self._values)
        if count > self._values:
            raise ValueError("more values than the limit")
        self._values -= count
        value = strict_json(data)
        if _is_deep(value):
            raise ValueError("nested too deeply")
        return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("not base 64") from None


def _preview(pair: Any) -> Preview | None:
    if not isinstance(pair, list) or len(pair) != 2:
        return None
    mime, text = pair
    try:
        data = _decoded(str(text))
    except ValueError:
        return None
    if picture_type(data) != mime or not is_small(data):
        return None
    return Preview(mime=mime, data=text)
