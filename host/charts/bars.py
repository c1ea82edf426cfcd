"""Bars and their axis as SVG: 10 units for each bar, 100 for the axis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

BAR = 10
"""Units along the chart that each bar has."""

AXIS = 98
"""Units from the begin of the axis to its end; one more on either side is free."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One amount."""

    at: int
    """The number of its place, from 0."""

    height: float
    """Its part of the axis, above 0 and at most 1."""

    label: str


def axis_top(highest: float, least: float) -> float:
    """Return the end of an axis: 1, 2 or 4 of a power of ten, as its half is short.

    Args:
        highest: The number that has to fit.
        least: The smallest end, which is 1, 2 or 4 of a power of ten.
    """
    ends = (
        factor * 10.0**power for power in range(-4, 16) for factor in (1.0, 2.0, 4.0)
    )
    return next(end for end in ends if end >= max(highest, least))


def lines_svg(places: int, heights: Iterable[float]) -> str:
    """Return lines across a chart.

    Args:
        places: The number of bars that it has room for.
        heights: Parts of the axis at which there is a line.
    """
    path = "".join(f"M0 {_depth(height):g}H{places * BAR}" for height in heights)
    return f'<path d="{path}" vector-effect="non-scaling-stroke"/>'


def bars_svg(bars: Iterable[Bar]) -> str:
    """Return bars, each with its label, which browsers show at the pointer."""
    return "".join(
        f'<rect x="{bar.at * BAR + 1}" y="{_depth(bar.height):g}" width="{BAR - 2}"'
        f' height="{round(AXIS * bar.height, 2):g}">'
        f"<title>{escape(bar.label)}</title></rect>"
        for bar in bars
    )


def _depth(height: float) -> float:
    """Return how far below the top of the drawing a part of the axis is."""
    return round(AXIS + 1 - AXIS * height, 2)
