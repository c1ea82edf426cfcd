"""Figures of matplotlib, as PNG."""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Tuple


PYPLOT = "matplotlib.pyplot"


def is_figure(value: Any) -> bool:
    """Return True for a figure of matplotlib."""
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(value, module.Figure)


def png_of(figure: Any) -> bytes:
    """Return a figure as the bytes of a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def take_open() -> Iterator[Tuple[int, Any]]:
    """Yield the number and figure of each open figure of pyplot, then close them."""
    pyplot = sys.modules.get(PYPLOT)
    if pyplot is not None:
        for number in pyplot.get_fignums():
            yield number, pyplot.figure(number)
        pyplot.close("all")


class FigureFiles:
    """Writes the figures of one run as files.

    Args:
        folder: Where; made with the first file.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._taken: set[int] = set()

    def save(self, number: int, png: bytes) -> None:
        """Write `figure-NUMBER.png`, or the next number that the run has not used."""
        while number in self._taken:
            number += 1
        self._taken.add(number)
        os.makedirs(self._folder, exist_ok=True)
        with open(os.path.join(self._folder, "figure-%d.png" % number), "wb") as file:
            file.write(png)
