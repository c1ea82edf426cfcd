"""Differences between arguments of a call and those that a person put there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from ..web.templating import as_json

MAX_COMPARED_LINES = 400
"""Lines of two objects that are compared. When it is reached all lines between the
first and the last difference are shown."""

_AROUND = 2
"""Lines around a difference that are shown with it."""


class Change(NamedTuple):
    """Lines that differ, or that stand around such lines."""

    line: int
    """The first of them in the first object, from 1."""

    before: str
    after: str
    """Lines of the two objects, each after `-` or `+`, or a blank if both have it."""

    begins: bool
    """True if it does not follow the change before: lines between may be left out."""

    @property
    def is_context(self) -> bool:
        """True if both objects have these lines."""
        return self.before == self.after


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Return what differs between two objects, in the order of their lines.

    Of more than `MAX_COMPARED_LINES` all between the first and the last that differ are
    in it, since finding the smallest difference takes quadratic time.
    """
    old, new = (as_json(each).splitlines() for each in (before, after))
    if len(old) + len(new) <= MAX_COMPARED_LINES:
        groups = SequenceMatcher(None, old, new).get_grouped_opcodes(_AROUND)
        return [
            _change(start, old[start:end], new[first:last], begins=not number)
            for group in groups
            for number, (_, start, end, first, last) in enumerate(group)
        ]
    start = _alike(old, new)
    end = min(_alike(old[::-1], new[::-1]), len(old) - start, len(new) - start)
    gone, come = old[start : len(old) - end], new[start : len(new) - end]
    return [_change(start, gone, come, begins=True)] if gone or come else []


def _change(
    start: int, old: Sequence[str], new: Sequence[str], *, begins: bool
) -> Change:
    marks = (" ", " ") if old == new else ("-", "+")
    before, after = (
        "\n".join(f"{mark}{line}" for line in lines)
        for mark, lines in zip(marks, (old, new), strict=True)
    )
    return Change(start + 1, before, after, begins)


def _alike(old: Sequence[str], new: Sequence[str]) -> int:
    """Return the number of lines at the start that are the same."""
    pairs = enumerate(zip(old, new, strict=False))
    shorter = min(len(old), len(new))
    return next((at for at, (left, right) in pairs if left != right), shorter)
