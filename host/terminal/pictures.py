"""Pictures in terminals that show them: of kitty and of iTerm2.

A picture is written as base 64, so none of its bytes can act on the terminal in another
way.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from typing import Literal

PictureProtocol = Literal["kitty", "iterm2"]

_KITTY_PIECE = 4096


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
