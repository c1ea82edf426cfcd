"""Checks of the arguments that callers pass."""

from __future__ import annotations

from toolcell.core import InvalidInputError


def check_kinds(**given: tuple[object, type]) -> None:
    """Raise InvalidInputError if an argument is neither None nor of its kind."""
    for name, (value, kind) in given.items():
        if value is not None and not isinstance(value, kind):
            raise InvalidInputError(
                f"{name} must be of type {kind.__name__}, not {type(value).__name__}",
                hint="pass one of that type, or leave it out",
            )


def check_freshness(value: object) -> None:
    """Raise InvalidInputError if a value is no `Freshness`."""
    if value not in ("program", "cell"):
        raise InvalidInputError(
            f"minimum_freshness is {value!r}", hint="use 'program' or 'cell'"
        )
