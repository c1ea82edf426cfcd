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
    """Return a figure as the bytes of a PNG, all of its labels included."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    return buffer.getvalue()


def take_open() -> Iterator[Tuple[int, Any]]:
    """Yield the number and figure of each open figure of pyplot, then close them."""
    pyplot = sys.modules.get(PYPLOT)
    if pyplot is not None:
        for number in pyplot.get_fignums():
            yield number, pyplot.figure(number)
        pyplot.close("all")


def save(folder: str, number: int, png: bytes) -> None:
    """Write `figure-NUMBER.png`, or the next number that no file has yet."""
    os.makedirs(folder, exist_ok=True)
    while True:
        try:
            file = open(os.path.join(folder, "figure-%d.png" % number), "xb")
        except FileExistsError:
            number += 1
        else:
            with file:
                file.write(png)
            return
