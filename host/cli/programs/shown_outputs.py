"""Outputs of a program for a person: texts, and pictures where a terminal has them."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
from collections.abc import Mapping
from functools import cache
from typing import Literal

from toolcell.core import ImagePart
from toolcell.core.text.printable import escaped
from toolcell.sandbox import Artifact, ExecutionResult, Output

from ...terminal.output import print_notice

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
PictureProtocol = Literal["kitty", "iterm2"]

_KITTY_PIECE = 4096


@cache
def _protocol() -> PictureProtocol | None:
    return picture_protocol(os.environ)


class OutputView:
    """Shows the outputs of one run on the standard output of this command."""

    def __init__(self) -> None:
        self._number = 0
        self._shown = 0

    def show(self, output: Output) -> None:
        """Show the next output of a run; a picture that cannot be shown is named.

        Of the value of the last expression only a picture is shown.
        """
        self._number += 1
        picture = _file_of(output, self._number)
        if picture is None:
            if not output.is_value:
                self._print_text(output)
            return
        data = _sequence(output) if self._shown < MAX_PICTURES else b""
        sys.stdout.flush()
        if data:
            self._shown += 1
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
        else:
            self._name(f"{picture.name}, {picture.mime}, {picture.size} bytes")

    def _print_text(self, output: Output) -> None:
        texts = [output.text(mime) for mime in _TEXTS]
        found = [text for text in texts if text is not None]
        if found:
            print(escaped(found[0]), flush=True)
        else:
            self._name(f"{', '.join(output.mimes) or 'nothing'}, not shown")

    def _name(self, text: str) -> None:
        print_notice(f"output {self._number}: {text}", as_json=False)


def _sequence(output: Output) -> bytes:
    """Return what shows a picture on this terminal; empty if nothing does."""
    protocol = _protocol()
    if protocol is None:
        return b""
    for part in output.to_content():
        if isinstance(part, ImagePart):
            data = base64.b64decode(part.data)
            if protocol == "iterm2":
                return iterm_picture(data)
            return kitty_picture(data) if part.mime == "image/png" else b""
    return b""


def picture_files(result: ExecutionResult) -> dict[int, Artifact]:
    """Return each output that is a picture as a file, by its number from 1.

    One that is an artifact already is that artifact; others are `output-NUMBER`.
    """
    known = {artifact.sha256: artifact for artifact in result.artifacts}
    files = (
        (each, _file_of(output, each)) for each, output in enumerate(result.outputs, 1)
    )
    return {each: known.get(file.sha256, file) for each, file in files if file}


def _file_of(output: Output, number: int) -> Artifact | None:
    """Return the best picture of an output as a file; None if it has none."""
    for mime, suffix in _SUFFIXES.items():
        data = output.content(mime)
        if data is not None:
            return Artifact(
                name=f"output-{number}.{suffix}",
                mime=mime,
                data=data,
                size=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
            )
    return None


def picture_protocol(environ: Mapping[str, str]) -> PictureProtocol | None:
    """Return how the terminal of this command shows pictures; None: it does not."""
    kind, program = environ.get("TERM", ""), environ.get("TERM_PROGRAM", "")
    # tmux and screen stand between this command and the terminal that set the others.
    if not sys.stdout.isatty() or kind.startswith(("tmux", "screen", "dumb")):
        return None
    if kind in ("xterm-kitty", "xterm-ghostty") or "KITTY_WINDOW_ID" in environ:
        return "kitty"
    if program in ("iTerm.app", "WezTerm") or environ.get("LC_TERMINAL") == "iTerm2":
        return "iterm2"
    return None


def kitty_picture(png: bytes) -> bytes:
    """Return the sequence that shows a PNG in kitty."""
    text = base64.b64encode(png)
    pieces = [text[at : at + _KITTY_PIECE] for at in range(0, len(text), _KITTY_PIECE)]
    parts = []
    for number, piece in enumerate(pieces, 1):
        # Without answers, which would be typed into the next command.
        head = b"a=T,f=100,q=2," if number == 1 else b""
        more = b"m=%d" % (number < len(pieces))
        parts.append(b"\x1b_G" + head + more + b";" + piece + b"\x1b\\")
    return b"".join(parts) + b"\n"


def iterm_picture(data: bytes) -> bytes:
    """Return the sequence that shows a PNG or JPEG in iTerm2."""
    facts = b"inline=1;size=%d;preserveAspectRatio=1" % len(data)
    return b"\x1b]1337;File=" + facts + b":" + base64.b64encode(data) + b"\x07\n"
