"""Notebooks as programs of one run."""

from __future__ import annotations

from collections.abc import Iterable

from toolcell.core import InvalidInputError

from ..cell.wire.contract import CELL_END


def notebook_program(cells: Iterable[str]) -> str:
    """Return the code cells of a notebook as one program for `run` and `stream`.

    They run as in Jupyter, one after the other until one fails: each displays its
    value, may `await` at its top level, and have commands such as `%timeit` or `!ls`.

    Args:
        cells: The text of each cell.

    Raises:
        InvalidInputError: A cell holds a NUL character, which is no Python.
    """
    texts = list(cells)
    for number, each in enumerate(texts, 1):
        if CELL_END in each:
            raise InvalidInputError(
                f"cell {number} holds a NUL character", hint="take it out"
            )
    return "".join(text + CELL_END for text in texts)
