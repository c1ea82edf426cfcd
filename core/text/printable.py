"""Text from outside, made safe to show to people, terminals and models.

A terminal obeys escape sequences, a person does not see that letters were reordered,
and a model reads characters that no font draws. Each such character is written out.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

COLOUR = re.compile(r"\x1b\[([0-9;]*)m")
"""A code that changes colours of a terminal; the group has its numbers."""

# Unicode's Default_Ignorable_Code_Point (DerivedCoreProperties.txt, version 16) where
# Python calls the character printable: joiners, fillers, variation selectors.
_IGNORABLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)
# All but printable ASCII, newline and tab has to be looked at.
_SUSPECT = re.compile(r"[^ -~\n\t]+")
_CUT = " [cut]"


def escaped(text: str, max_characters: int | None = None) -> str:
    """Return text with every hidden character written like `\\u{1b}`.

    Hidden are control characters other than newline and tab, format characters (among
    them those that reorder text), surrogates, private and unassigned code points,
    separators of lines and paragraphs, and what Unicode lets a font leave out, such as
    variation selectors and Hangul fillers. The result can be encoded as UTF-8.

    Args:
        text: Text of any origin.
        max_characters: Length of the result in characters; default any. When it is
            reached the rest is left out, and ` [cut]` stands at the end.
    """
    if max_characters is None:
        return _SUSPECT.sub(_escape, text)
    # An escape is longer than its character, so what lies further behind never fits.
    seen = _SUSPECT.sub(_escape, text[: max_characters + 1])
    if len(seen) <= max_characters:
        return seen
    return seen[: max_characters - len(_CUT)] + _CUT


def escaped_line(text: str) -> str:
    """Return escaped text as one line: newline and tab are written out as well."""
    return escaped(text).replace("\n", "\\n").replace("\t", "\\t")


def escaped_json(value: Any) -> Any:
    """Return a JSON value with all its texts escaped, the names of members too.

    Two names that would become one differ by a number behind the second.
    """
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, list | tuple):
        return [escaped_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    shown: dict[str, Any] = {}
    for name, item in value.items():
        label = escaped(name)
        if label in shown:
            label = f"{label}'{len(shown)}"
        shown[label] = escaped_json(item)
    return shown


def has_hidden(text: str) -> bool:
    """Return True if `escaped` would write out a character of this text."""
    return escaped(text) != text


def _escape(match: re.Match[str]) -> str:
    run = match[0]
    if run.isprintable() and not _IGNORABLE.search(run):
        return run
    return "".join(f"\\u{{{ord(x):x}}}" if _is_hidden(x) else x for x in run)


def _is_hidden(character: str) -> bool:
    if character.isprintable():
        return _IGNORABLE.match(character) is not None
    # Spaces such as U+3000 are unprintable to Python, but people see the gap.
    return unicodedata.category(character) != "Zs"


def without_overwritten(text: str) -> str:
    """Return a text in which carriage returns have had their effect.

    Of each line the last part that is not empty is left: a program that goes back to
    the beginning of its line writes over all of it.
    """
    if "\r" not in text:
        return text
    return "\n".join(map(_last_part, text.split("\n")))


def _last_part(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]
