"""The size of a pattern when its counts are written out, without compiling it."""

from __future__ import annotations

import re
from typing import NamedTuple

_CLASS = r"\[\^?\]?(?:\\.|[^]\\])*\]?"
_TOKEN = re.compile(
    r"\\[pPxuU]\{[^}]{0,64}\}|\\.|" + _CLASS + r"|\(\?[A-Za-z-]*[:)]?|\{[0-9,\s]+\}|.",
    re.DOTALL,
)
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_ONE_COUNT = re.compile(
    rf"\^(?:\.|\\[dswDSW]|{_CLASS})\{{[0-9]+(?:,[0-9]*)?\}}\$", re.DOTALL
)
_MOST = 1 << 40

_BYTES = {"w": 65_536, "p": 65_536, "d": 6_144, "s": 4_096}
_ANY_CHARACTER = 1_536
_CHARACTER = 64


class PatternSize(NamedTuple):
    """The size of a pattern."""

    at_once: int
    """Parts, which are characters and classes, that a step may look for at once."""

    bytes: int
    """About its size when it is compiled, as measured with pydantic-core 2."""


class UnmeasuredError(Exception):
    """A pattern has a flag or a class in which its counts cannot be read."""


def measured(pattern: str) -> PatternSize:
    """Return the size of a pattern.

    Raises:
        UnmeasuredError: It has the flag `x`, or a class inside of a class.
    """
    # Of each open group, parts and bytes: before its last item, and of that one.
    groups = [[0, 0, 0, 0]]
    for item in _TOKEN.findall(pattern):
        top = groups[-1]
        if item.startswith("(?") and "x" in item:
            raise UnmeasuredError
        if item[0] == "(" and item[-1] != ")":
            groups.append([0, 0, 0, 0])
        elif item == ")" and len(groups) > 1:
            parts, size, last_parts, last_size = groups.pop()
            _add(groups[-1], parts + last_parts, size + last_size)
        elif item[0] == "{" and len(item) > 1:
            top[2:] = [min(each * _count(item), _MOST) for each in top[2:]]
        elif item not in "?*+":
            _add(top, 1, _bytes(item))
    parts, size = (sum(top[n] + top[n + 2] for top in groups) for n in (0, 1))
    return PatternSize(1 if _ONE_COUNT.fullmatch(pattern) else parts, size)


def _add(group: list[int], parts: int, size: int) -> None:
    group[:] = group[0] + group[2], group[1] + group[3], parts, size


def _count(item: str) -> int:
    counts = re.findall("[1-9][0-9]*", item)
    return max((int(count[:10]) for count in counts), default=1)


def _bytes(item: str) -> int:
    if item[0] != "[" or len(item) == 1:
        return _bytes_of_one(item)
    if "[" in _ESCAPED.sub("", item[1:]):
        raise UnmeasuredError
    classes = sum(map(_bytes_of_one, _ESCAPED.findall(item)))
    others = _CHARACTER * sum(not character.isascii() for character in item)
    return classes + others + (_ANY_CHARACTER if item[1] == "^" else _CHARACTER)


def _bytes_of_one(item: str) -> int:
    if item[0] == "\\":
        return _BYTES.get(item[1:2].lower(), _CHARACTER)
    return _ANY_CHARACTER if item == "." else _CHARACTER
