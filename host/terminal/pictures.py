"""Pictures in terminals that show them: of kitty, of iTerm2, and sixel.

A picture is written as base 64 for the first two, and as checked sixel data for the
third, so none of its bytes can act on the terminal in another way.
"""

from __future__ import annotations

import base64
import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Mapping
from typing import Literal

PictureProtocol = Literal["kitty", "iterm2", "sixel"]

ANSWER_SECONDS = 0.2
"""Seconds in which a terminal answers whether it knows sixel. When they are over it
counts as one that does not."""

MAX_SIXEL_SIDE = 2_000
"""Pixels of a side of sixel data. When it is exceeded the data is not shown: a repeat
count of few bytes would cost the terminal any memory."""

_KITTY_PIECE = 4096
_MAX_ANSWER = 256
_ASK = b"\x1b[c"
_ATTRIBUTES = re.compile(rb"\x1b\[\?([0-9;]*)c")
_SIXEL = "4"
# Commands of sixel are printable; a sequence that ends early would leave text behind.
_SIXEL_DATA = re.compile(rb"\x1bP([0-9;]*q[!-?@-~\r\n]*)\x1b\\\s*")
_NUMBER = re.compile(rb"[0-9]+")
_COLUMNS = re.compile(rb"!([0-9]+)[?-~]|[?-~]")


def picture_protocol(environ: Mapping[str, str]) -> PictureProtocol | None:
    """Return how the terminal of this command shows pictures; None: it does not.

    Without a terminal as standard output it is None, and nothing is written.
    """
    if not sys.stdout.isatty():
        return None
    return _by_environment(environ) or _by_question()


def _by_environment(environ: Mapping[str, str]) -> PictureProtocol | None:
    kind, program = environ.get("TERM", ""), environ.get("TERM_PROGRAM", "")
    if kind.startswith(("tmux", "screen")) or kind == "dumb":
        # It stands between this command and the terminal that the others are set by.
        return None
    if kind in ("xterm-kitty", "xterm-ghostty") or "KITTY_WINDOW_ID" in environ:
        return "kitty"
    if program in ("iTerm.app", "WezTerm") or environ.get("LC_TERMINAL") == "iTerm2":
        return "iterm2"
    return None


def _by_question() -> PictureProtocol | None:
    """Ask the terminal for its attributes; what it does not answer in time is lost."""
    if not sys.stdin.isatty():
        return None
    source = sys.stdin.fileno()
    try:
        before = termios.tcgetattr(source)
        tty.setcbreak(source)
        try:
            sys.stdout.flush()
            os.write(sys.stdout.fileno(), _ASK)
            answer = _answer(source, time.monotonic() + ANSWER_SECONDS)
        finally:
            termios.tcsetattr(source, termios.TCSADRAIN, before)
    except (OSError, termios.error):
        return None
    found = _ATTRIBUTES.search(answer)
    known = found is not None and _SIXEL in found[1].decode().split(";")[1:]
    return "sixel" if known else None


def _answer(source: int, until: float) -> bytes:
    answer = b""
    while len(answer) < _MAX_ANSWER and not _ATTRIBUTES.search(answer):
        left = until - time.monotonic()
        if left <= 0 or not select.select([source], [], [], left)[0]:
            break
        data = os.read(source, _MAX_ANSWER)
        if not data:
            break
        answer += data
    return answer


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


def checked_sixel(data: bytes) -> bytes | None:
    """Return untrusted sixel data if that is all it is, and no large picture."""
    found = _SIXEL_DATA.fullmatch(data)
    if found is None or any(
        len(each) > 4 or int(each) > MAX_SIXEL_SIDE
        for each in _NUMBER.findall(found[1])
    ):
        return None
    is_small = max(sixel_size(data)) <= MAX_SIXEL_SIDE
    return data.rstrip() + b"\n" if is_small else None


def sixel_size(data: bytes) -> tuple[int, int]:
    """Return the width and height in pixels that sixel data draws on."""
    # Rows of six pixels, which are drawn once for each color.
    rows = data.partition(b"q")[2].rpartition(b"\x1b")[0].split(b"-")
    lines = (line for row in rows for line in row.split(b"$"))
    width = max(
        sum(int(each[1] or 1) for each in _COLUMNS.finditer(line)) for line in lines
    )
    return width, 6 * len(rows)
