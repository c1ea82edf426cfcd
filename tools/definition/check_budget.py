"""A bound on the work of checking one value against a schema.

A schema may come from another program. Thirty schemas, each of two references to the
next one, would be tried a thousand million times; one that refers to itself, for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jsonschema.exceptions import ValidationError

MAX_STEPS = 20_000
"""Keywords that are tried for one value. When it is reached the value is refused."""

STEPS_PER_VALUE = 250
"""Keywords that may be tried besides for each text, number, list or object in it."""

MAX_LEVELS = 150
"""Keywords inside each other. When it is reached the value is refused."""

_Keyword = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]


class TooMuchToCheckError(Exception):
    """A value takes too many steps, or too many levels of them."""


class _Budget:
    def __init__(self, value: Any) -> None:
        self._value = value
        self._left = MAX_STEPS
        self._is_last = False
        self._levels = 0

    def enter(self) -> None:
        self._left -= 1
        self._levels += 1
        if self._levels > MAX_LEVELS or (self._left < 0 and self._is_last):
            raise TooMuchToCheckError
        if self._left < 0:
            # Counted late: most values need few steps.
            self._left, self._is_last = STEPS_PER_VALUE * _size(self._value), True

    def leave(self) -> None:
        self._levels -= 1


_budget: ContextVar[_Budget] = ContextVar("budget")


@contextmanager
def bounded(value: Any) -> Iterator[None]:
    """Bound what `counted` keywords do inside, to check a value.

    Raises:
        TooMuchToCheckError: They reached the bound.
    """
    token = _budget.set(_Budget(value))
    try:
        yield
    finally:
        _budget.reset(token)


def counted(keyword: _Keyword) -> _Keyword:
    """Return a keyword that counts its steps and levels."""

    def check(validator: Any, wanted: Any, value: Any, schema: Any) -> Any:
        budget = _budget.get()
        budget.enter()
        try:
            yield from keyword(validator, wanted, value, schema) or ()
        finally:
            budget.leave()

    return check


def _size(value: Any) -> int:
    left, size = [value], 0
    while left:
        each = left.pop()
        size += 1
        if isinstance(each, dict):
            left += each.values()
        elif isinstance(each, list):
            left += each
    return size
