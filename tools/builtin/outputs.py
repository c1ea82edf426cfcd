"""Outputs of a program, as the model that wrote it sees them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from pydantic import JsonValue

from toolcell.core import ImagePart
from toolcell.sandbox import Output

from ..definition.context import ToolContext

MAX_CHARACTERS = 65_536
"""Characters of the texts of all outputs of one call. When it would be exceeded the
size of a text stands for it."""


def shown_outputs(outputs: Sequence[Output], context: ToolContext) -> list[JsonValue]:
    """Return outputs in order, for the facts of a call; show their pictures beside it.

    Each has its media types and origin, and either its `text` or the number of its
    `picture` among those of the call, from 1. The size and SHA-256 of a picture stay in
    the record of the call, which has no picture.
    """
    shown: list[JsonValue] = []
    pictures, room = 0, MAX_CHARACTERS
    for output in outputs:
        about: dict[str, JsonValue] = {
            "mimes": list(output.mimes),
            "origin": output.origin,
        }
        if output.is_value:
            about["is_value"] = True
        if output.left_out:
            about["left_out"] = list(output.left_out)
        for part in output.to_content():
            if isinstance(part, ImagePart):
                data = base64.b64decode(part.data)
                if context.show(part):
                    pictures += 1
                    about["picture"] = pictures
                else:
                    about["text"] = f"[{part.mime}, {len(data)} bytes: not sent]"
                about["bytes"] = len(data)
                about["sha256"] = hashlib.sha256(data).hexdigest()
            elif len(part.text) <= room:
                room -= len(part.text)
                about["text"] = part.text
            else:
                about["text"] = f"[{len(part.text)} characters: not sent]"
        shown.append(about)
    return shown
