"""Outputs of a program for a person: texts, and pictures where a terminal has them."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
from collections.abc import Sequence

from toolcell.core import ImagePart, ToolcellError
from toolcell.core.text.printable import escaped
from toolcell.sandbox import Artifact, ExecutionResult, Limits, Output, Sandbox

from ...terminal.pictures import (
    PictureProtocol,
    checked_sixel,
    iterm_picture,
    kitty_picture,
    picture_protocol,
)

MAX_PICTURES = 32
"""Pictures that are shown of one run. When it is reached the others are named."""

_SUFFIXES = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/svg+xml": "svg",
}
_TEXTS = ("text/markdown", "text/latex", "text/plain")
_CONVERT = "exec img2sixel -w 800 picture"
_CONVERT_LIMITS = Limits(wall_seconds=10)


class OutputView:
    """Shows outputs on the standard output of this command.

    The terminal is asked how it shows pictures when the first one comes.

    Args:
        sandbox: Makes sixel data of pictures, by `img2sixel` in a cell if that is
            there: decoders of pictures do not run outside.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._protocol: PictureProtocol | None = None
        self._asked = False

    async def show(self, outputs: Sequence[Output]) -> frozenset[int]:
        """Show outputs; return the numbers, from 1, of the pictures that were shown.

        Of the value of the last expression only a picture is shown.
        """
        shown: set[int] = set()
        for number, output in enumerate(outputs, 1):
            data = b""
            if pictures_of(output) and len(shown) < MAX_PICTURES:
                data = await self._sequence(output)
            if data:
                sys.stdout.flush()
                sys.stdout.buffer.write(data)
                sys.stdout.flush()
                shown.add(number)
            elif not output.is_value:
                _print_text(output)
        return frozenset(shown)

    async def _sequence(self, output: Output) -> bytes:
        """Return what shows a picture on this terminal; empty if nothing does."""
        if not self._asked:
            self._asked = True
            self._protocol = picture_protocol(os.environ)
        if self._protocol is None:
            return b""
        for part in output.to_content():
            if isinstance(part, ImagePart):
                data = base64.b64decode(part.data)
                if self._protocol == "iterm2":
                    return iterm_picture(data)
                if self._protocol == "sixel":
                    return await self._sixel(data)
                return kitty_picture(data) if part.mime == "image/png" else b""
        return b""

    async def _sixel(self, data: bytes) -> bytes:
        try:
            result = await self._sandbox.run(
                _CONVERT,
                language="bash",
                files={"picture": data},
                limits=_CONVERT_LIMITS,
            )
        except ToolcellError:
            return b""
        whole = result.ok and not result.truncated
        return (checked_sixel(result.stdout_bytes) or b"") if whole else b""


def _print_text(output: Output) -> None:
    if any(mime in _SUFFIXES for mime in output.mimes):
        # It is named, or saved.
        return
    texts = [output.text(mime) for mime in _TEXTS]
    print(escaped(next((each for each in texts if each is not None), "")))


def pictures_of(output: Output) -> list[str]:
    """Return the media types of an output's pictures, the best one first."""
    return [mime for mime in _SUFFIXES if mime in output.mimes]


def picture_files(result: ExecutionResult) -> dict[int, Artifact]:
    """Return each output that is a picture as a file, by its number from 1.

    One that is an artifact already is that artifact; others are `output-NUMBER`.
    """
    known = {each.sha256: each for each in result.artifacts}
    found = {}
    for number, output in enumerate(result.outputs, 1):
        for mime in pictures_of(output)[:1]:
            data = output.content(mime) or b""
            sha256 = hashlib.sha256(data).hexdigest()
            found[number] = known.get(sha256) or Artifact(
                name=f"output-{number}.{_SUFFIXES[mime]}",
                mime=mime,
                data=data,
                size=len(data),
                sha256=sha256,
            )
    return found
