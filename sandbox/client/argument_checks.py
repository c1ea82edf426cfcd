"""Checks of the arguments that callers pass."""

from __future__ import annotations

from toolcell.core import InvalidInputError


def check_kinds(**given: tuple[object, type]) -> None:
    """Raise InvalidInputError if an argument is neither None nor of its kind."""
    for name, (value, kind) in given.items():
        if value is not None and not isinstance(value, kind):
            raise InvalidInputError(
                f"{name} must be a {kind.__name__}, not {type(value).__name__}",
                hint=f"pass a {kind.__name__}, or leave it out",
            )
