"""Conditions on texts: a pattern for the whole of one, and what it contains."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator

from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from .readings import MAX_TEXT, folded, readings, visible

TextCheck = Callable[[object], bool | None]
"""Returns True if a text as it is meets a condition, None if it does in another
reading or cannot be judged, else False."""


def pattern_validator(pattern: str) -> SchemaValidator:
    """Return a validator by pydantic's own engine, which is linear in the text.

    Raises:
        ValueError: The pattern is not valid, or needs backtracking.
    """
    try:
        # Alone first: `a)|(b` must not slip out of the group around it.
        SchemaValidator(core_schema.str_schema(pattern=pattern))
        whole = rf"\A(?s:{pattern})\z"
        return SchemaValidator(core_schema.str_schema(pattern=whole, strict=True))
    except SchemaError:
        raise ValueError("not a regular expression of linear time") from None


def whole_text(pattern: str) -> TextCheck:
    """Return a check that a pattern matches a text from its start to its end."""
    validator = pattern_validator(pattern)

    def matches(text: str) -> bool:
        try:
            validator.validate_python(text)
        except ValidationError:
            return False
        return True

    def check(value: object) -> bool | None:
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            return None
        if matches(value):
            return True
        return None if any(map(matches, readings(value))) else False

    return check


def containing(texts: Collection[str], *, words: bool) -> TextCheck:
    """Return a check that a text contains one of some texts, in any case.

    Args:
        texts: The texts to look for.
        words: True finds them as whole words only: no letter, digit or `_` beside.
    """
    exact = _search(map(str.casefold, texts), words)
    alike = _search(filter(str.strip, map(folded, texts)), words)

    def check(value: object) -> bool | None:
        if isinstance(value, list | dict):
            found = (check(text) for text in _texts(value))
            return False if all(each is False for each in found) else None
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            return None
        if exact(value.casefold()):
            return True
        return None if any(map(alike, map(folded, readings(value)))) else False

    return check


def _search(texts: Iterable[str], words: bool) -> Callable[[str], bool]:
    """Return a search for one of some texts."""
    wanted = [(each, re.compile(rf"(?<!\w){re.escape(each)}(?!\w)")) for each in texts]

    def found_in(text: str) -> bool:
        return any(
            each in text and (not words or word.search(text) is not None)
            for each, word in wanted
        )

    return found_in


def check_wanted(text: str) -> str:
    """Return a text to look for.

    Raises:
        ValueError: Nothing of it can be seen.
    """
    if not visible(text):
        raise ValueError("a text to look for needs characters that can be seen")
    return text


def _texts(value: object) -> Iterator[str]:
    """Yield each text in a value; those side by side in a list also as one line."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _texts(each)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
        if value and all(isinstance(each, str) for each in value):
            yield " ".join(value)
