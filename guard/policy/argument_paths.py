"""Paths of rules into the arguments of a call.

A path is the names of members, one inside the other: `a.b`. A name that contains a dot,
a space or another odd character is written as a JSON string: `"a.b".c`. `*` alone is
the arguments as a whole. A path goes through every element of a list.
"""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import Literal

Path = tuple[str, ...]
_NAME = re.compile(r'"(?:[^"\\]|\\.)*"|(?!/)[^\s.*\[\]"\\]+')


class Nothing(Enum):
    """Markers that `values_at` returns in place of a value."""

    ABSENT = "nothing is there"
    UNCLEAR = "the path cannot be followed exactly"


Reached = object | Literal[Nothing.ABSENT, Nothing.UNCLEAR]


def parse_path(text: str) -> Path:
    """Return the names of a path; none for the arguments as a whole.

    Raises:
        ValueError: The text is not a path.
    """
    if text == "*":
        return ()
    names: list[str] = []
    at = 0
    while found := _NAME.match(text, at):
        names.append(_unquoted(found[0]))
        at = found.end()
        if at == len(text):
            return tuple(names)
        if text[at] != ".":
            break
        at += 1
    raise ValueError(
        f"{text!r} is not a path of arguments: names with dots between them, "
        'and an odd name as a JSON string, as in "a.b".c; '
        "lists need no index, every element counts"
    )


def _unquoted(name: str) -> str:
    if not name.startswith('"'):
        return name
    try:
        return str(json.loads(name))
    except ValueError:
        raise ValueError(f"{name} is not a JSON string") from None


def values_at(value: object, path: Path) -> list[Reached]:
    """Return the values at a path: one, or one for each element of a list.

    `ABSENT` takes the place of a member that is missing, of a member of null and of one
    of an empty list. `UNCLEAR` takes the place of a member of anything else, of an
    index, and of a key that is spelled like the path with its dots, since another
    program may read that.
    """
    for place, name in enumerate(path):
        if isinstance(value, list):
            return _values_in(value, path[place:])
        if not isinstance(value, dict):
            return [Nothing.ABSENT if value is None else Nothing.UNCLEAR]
        if place + 1 < len(path) and _has_dotted(value, path[place:]):
            return [Nothing.UNCLEAR]
        if name not in value:
            return [Nothing.ABSENT]
        value = value[name]
    return [value]


def _values_in(values: list[object], path: Path) -> list[Reached]:
    if not values:
        return [Nothing.ABSENT]
    if path[0].isdigit():
        return [Nothing.UNCLEAR]
    return [found for each in values for found in values_at(each, path)]


def _has_dotted(value: dict[str, object], path: Path) -> bool:
    return any(".".join(path[:end]) in value for end in range(2, len(path) + 1))
