"""Saves figures and tables of a program as artifacts, without code of its own."""

from __future__ import annotations

import os
import sys

from ..wire.contract import ARTIFACTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_PYPLOT = "matplotlib.pyplot"
_MAX_HTML = 1024 * 1024


def wanted(value: Any) -> bool:
    """Return True if there may be something to save; costs next to nothing."""
    return _PYPLOT in sys.modules or hasattr(type(value), "_repr_html_")


def save(value: Any, folder: str) -> None:
    """Save open figures as PNG, and a value with `_repr_html_` as text and as HTML."""
    target = os.path.join(folder, ARTIFACTS)
    pyplot = sys.modules.get(_PYPLOT)
    if pyplot is not None:
        for number in pyplot.get_fignums():
            os.makedirs(target, exist_ok=True)
            figure = pyplot.figure(number)
            figure.savefig(os.path.join(target, f"figure-{number}.png"), format="png")
        pyplot.close("all")
    if hasattr(type(value), "_repr_html_"):
        html = value._repr_html_()
        if isinstance(html, str) and len(html) <= _MAX_HTML:
            os.makedirs(target, exist_ok=True)
            _write(os.path.join(target, "value.html"), html)
            _write(os.path.join(target, "value.txt"), str(value))


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
