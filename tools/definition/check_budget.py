"""A bound on the work of checking one value against a schema.

A schema may come from another program. Thirty schemas, each of two references to the
next one, would be tried a thousand million times; one that refers to itself, for ever;
and a thousand that repeat a large value in their messages take minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jsonschema.exceptions import ValidationError

from toolcell.core.event_loop import rest

MAX_STEPS = 20_000
"""Steps for one value: keywords that are tried, and what they read. When it is reached
the size of the value is counted."""

STEPS_PER_SIZE = 50
"""Steps for each text, number, list or object of a large value, and for each 64
characters. When it is reached the value is refused."""

MOST_STEPS = 1_000_000
"""Steps for the largest value. When it is reached the value is refused."""

MAX_LEVELS = 150
"""Keywords inside each other. When it is reached the value is refused."""

CHARACTERS, _PARTS = 64, 16
"""Characters of a text, and parts of a list or object, that one step reads."""

_Keyword = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]


class TooMuchToCheckError(Exception):
    """A value takes too many steps, or too many levels of them."""


class _Budget:
    def __init__(
        self, value: Any, max_levels: float, kept: dict[Hashable, Any]
    ) -> None:
        self.kept = kept
        self._value = value
        self._max_levels = max_levels
        self._left = MAX_STEPS
        self._is_last = False
        self._levels = 0

    def spend(self, steps: int) -> None:
        rest()
        self._left -= steps
        if self._left < 0 and not self._is_last:
            # Counted late: most values need few steps.
            more = min(STEPS_PER_SIZE * _size(self._value), MOST_STEPS)
            self._left, self._is_last = self._left + more, True
        if self._left < 0:
            raise TooMuchToCheckError

    def enter(self) -> None:
        self._levels += 1
        if self._levels > self._max_levels:
            raise TooMuchToCheckError

    def leave(self) -> None:
        self._levels -= 1


_budget: ContextVar[_Budget] = ContextVar("budget")


@contextmanager
def bounded(
    value: Any,
    *,
    max_levels: float = MAX_LEVELS,
    kept: dict[Hashable, Any] | None = None,
) -> Iterator[None]:
    """Bound what `counted` keywords do inside, to check a value.

    Args:
        value: The value.
        max_levels: Keywords inside each other.
        kept: What the keywords of one schema prepared; None: nothing yet.

    Raises:
        TooMuchToCheckError: They reached the bound.
    """
    token = _budget.set(_Budget(value, max_levels, {} if kept is None else kept))
    try:
        yield
    finally:
        _budget.reset(token)


def spend(steps: int, *read: Any) -> None:
    """Count steps, and those that it takes to read values; not what is inside of them.

    Raises:
        TooMuchToCheckError: They reached the bound.
    """
    budget = _budget.get()
    budget.spend(steps + sum(map(_steps_to_read, read)))


def kept() -> dict[Hashable, Any]:
    """Return what the keywords of this schema prepared: it lives as long as they do."""
    return _budget.get().kept


def _steps_to_read(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value) // CHARACTERS
    return len(value) // _PARTS if isinstance(value, dict | list) else 0


def counted(keyword: _Keyword) -> _Keyword:
    """Return a keyword that counts its steps and levels."""

    def check(validator: Any, wanted: Any, value: Any, schema: Any) -> Any:
        budget = _budget.get()
        spend(1, wanted, value)
        budget.enter()
        try:
            for error in keyword(validator, wanted, value, schema) or ():
                # Its message repeats the value.
                spend(0, error.message)
                yield error
        finally:
            budget.leave()

    return check


def _size(value: Any) -> int:
    left, size = [value], 0
    while left:
        each = left.pop()
        size += 1
        if isinstance(each, dict):
            size += sum(map(len, each)) // CHARACTERS
            left += each.values()
        elif isinstance(each, list):
            left += each
        elif isinstance(each, str):
            size += len(each) // CHARACTERS
    return size
