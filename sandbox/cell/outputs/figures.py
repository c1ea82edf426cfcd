"""Figures of matplotlib, as PNG."""

from __future__ import annotations

import importlib
import io
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, Tuple


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


def bundle_of(figure: Any) -> Dict[str, Any]:
    """Return a figure as PNG, and its data where E2B's extractor is installed."""
    found: Dict[str, Any] = {"image/png": png_of(figure)}
    try:
        extractor = importlib.import_module("e2b_charts")
        chart = as_json(extractor.chart_figure_to_dict(figure))
    except Exception:
        # It does not know all figures.
        chart = None
    if chart:
        found["e2b/chart"] = chart
    return found


def as_json(value: Any) -> Any:
    """Return a value as JSON has it: dates and others as texts, no NaN."""

    def text(each: Any) -> Any:
        for name in ("isoformat", "item"):
            if hasattr(each, name):
                return getattr(each, name)()
        return str(each)

    # NaN is no JSON.
    return json.loads(json.dumps(value, default=text), parse_constant=lambda _: None)


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
