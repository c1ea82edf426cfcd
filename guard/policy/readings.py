"""Other readings of a text, by which a rule finds what is written oddly.

A program may read a text in other ways than a rule: Python takes full-width letters for
plain ones, a shell drops quotes, people see no joiner of width zero. All of it takes
time in proportion to the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

MAX_TEXT = 100_000
"""Characters of a text that a rule reads. When it is reached the text cannot be
judged."""

_MARKS = 30
"""Combining marks in a row (Unicode's Stream-Safe Text Format, UAX 15). When it is
reached the others are left out: ordering them takes quadratic time."""

INVISIBLE = (
    "\0-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f"
    "\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u1806\u180b-\u180f\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Characters for a class of a regular expression that people do not see: controls,
formats, fillers, selectors. White space is not among them."""

_INVISIBLE = re.compile(f"[{INVISIBLE}]+")
_NO_LETTERS = re.compile(r"(?<![^\w\s!-~])[^\w\s!-~]{31,}")
_LONG = str.maketrans({"\ufdfa": " ", "\ufdfb": " "})
"""Two characters that stand for whole phrases, of up to 18 characters."""

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


def compatible_form(text: str) -> str:
    """Return a text in Unicode's compatible form (NFKC), in linear time."""
    if text.isascii():
        return text
    text = _NO_LETTERS.sub(_with_few_marks, text).translate(_LONG)
    return unicodedata.normalize("NFKC", text)


def visible(text: str) -> str:
    """Return a text in its compatible form, without what people do not see."""
    if text.isascii() and text.isprintable():
        return text
    return _INVISIBLE.sub("", compatible_form(text))


def _with_few_marks(match: re.Match[str]) -> str:
    kept: list[str] = []
    marks = 0
    for character in match[0]:
        marks = marks + 1 if unicodedata.combining(character) else 0
        if marks <= _MARKS:
            kept.append(character)
    return "".join(kept)
