"""Other readings of a text, by which a rule finds what is written oddly.

A program may read a text in other ways than a rule: Python takes full-width letters for
plain ones, a shell drops quotes, people see no joiner of width zero. All of it takes
time in proportion to the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Literal

MAX_TEXT = 100_000
"""Characters of a text that a rule reads. When it is reached the text cannot be
judged."""

_RUN = 30
"""Characters in a row, none of them a letter, that are brought into one order (as many
marks as Unicode's Stream-Safe Text Format, UAX 15). When it is reached those behind are
taken in their own parts: the order of many marks takes quadratic time."""

_INVISIBLE = re.compile(
    "["
    "\0-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f"
    "\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u1806\u180b-\u180f\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
"""Characters that people do not see: controls, formats, fillers, selectors. White space
is not among them."""

_REST_OF_RUN = re.compile(r"([^\w\s!-~](?<=[^\w\s!-~]{31})[^\w\s!-~]*+)")
_SPACE = re.compile(r"\s+")
_FIELD_SEPARATOR = re.compile(r"\$(?:IFS\b(?:\$[0-9@*])?|\{IFS[^}]{0,20}\})")
_SHELL = frozenset("$\\'\"`")
_QUOTES = re.compile(r"\\\n|[\\'\"`]")


def readings(text: str) -> Iterator[str]:
    """Yield a text as other programs may read it.

    That is in Unicode's compatible form without invisible characters, with one space
    for each run of white space; and then without the quotes, backslashes and field
    separators of a shell.
    """
    plain = visible(text)
    yield _SPACE.sub(" ", plain)
    if _SHELL.isdisjoint(plain):
        return
    unquoted = _FIELD_SEPARATOR.sub(" ", plain)
    yield _SPACE.sub(" ", _QUOTES.sub("", unquoted))


def folded(text: str) -> str:
    """Return a text in one case, form and spacing, for comparison."""
    return _SPACE.sub(" ", visible(visible(text).casefold()))


def visible(text: str) -> str:
    """Return a text in Unicode's compatible form, without what people do not see."""
    if text.isascii() and text.isprintable():
        return text
    kept = _INVISIBLE.sub("", text)
    return _INVISIBLE.sub("", normalized(unicodedata.normalize, kept))


def normalized(normalize: Callable[[Literal["NFKC"], str], str], text: str) -> str:
    """Return a text in Unicode's compatible form, in linear time."""
    if text.isascii():
        return text
    # Two characters stand for whole phrases, of up to 18 characters.
    text = text.replace("\ufdfa", " ").replace("\ufdfb", " ")
    parts = [
        part[start : start + _RUN] if number % 2 else part
        for number, part in enumerate(_REST_OF_RUN.split(text))
        for start in (range(0, len(part), _RUN) if number % 2 else (0,))
    ]
    return "".join(normalize("NFKC", part) for part in parts)
