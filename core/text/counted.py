"""Numbers of things, in words for people."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number and its noun, as in `1 policy` and `2 policies`.

    Args:
        number: How many there are.
        one: The noun for one of them.
        many: The noun for any other number; None is `one` and an s.
    """
    return f"{number} {one if number == 1 else many or f'{one}s'}"
