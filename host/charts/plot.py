"""One figure of several things as a file of SVG, on an axis of powers of ten."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from .bars import AXIS, BAR, Bar, bars_svg, lines_svg

_WIDTH, _LEFT, _AXIS, _ROW, _TOP, _BELOW = 980, 290, 400, 24, 44, 50
"""Pixels: the whole, names, bars, a row, above the first and below the last."""

_STYLE = """\
text{font:13px system-ui,sans-serif;fill:#222}
.title{font-weight:bold;font-size:15px}
.faint{fill:#666;font-size:12px}
rect{fill:#9aa5b1}
.ours rect{fill:#2563eb}
.paper{fill:#fff}
.lines path{stroke:#ddd}
.spread{stroke:#111;stroke-width:2}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing: a bar of its figure, or a note in place of it."""

    name: str
    ours: bool
    """True for a bar in the colour of the house."""

    figure: tuple[float, float, float] | None = None
    """Lower quartile, median and upper quartile, all above 0; None: see `note`."""

    note: str = ""


def plot(title: str, unit: str, caption: str, rows: Sequence[Row]) -> str:
    """Return the text of a file: a row for each thing, with its median and quartiles.

    Args:
        title: The line above.
        unit: That of all figures.
        caption: The line below.
        rows: From the top down.
    """
    figures = [each for row in rows if row.figure for each in row.figure]
    first, last = _powers(figures)
    height = _TOP + _ROW * len(rows) + _BELOW
    heights = [n / (last - first) for n in range(last - first + 1)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
        f' role="img" aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{_WIDTH}" height="{height}"/>',
        _text(12, 24, f"{title} ({unit})", "title"),
        f'<g class="lines" {_turned()}>{lines_svg(len(rows), heights)}</g>',
    ]
    for number, each in enumerate(heights):
        label = _number(10.0 ** (first + number))
        parts.append(_text(_LEFT + _AXIS * each, height - 32, label, "faint", "middle"))
    for at, row in enumerate(rows):
        parts += _row(at, row, first, last - first)
    parts += [_text(12, height - 10, caption, "faint"), "</svg>"]
    return "\n".join(parts) + "\n"


def _powers(figures: Sequence[float]) -> tuple[int, int]:
    """Return the powers of ten at which the axis begins and ends."""
    if not figures:
        return 0, 1
    first = math.ceil(math.log10(min(figures))) - 1
    return first, max(math.ceil(math.log10(max(figures))), first + 1)


def _row(at: int, row: Row, first: int, powers: int) -> list[str]:
    """Return the name of a row, its bar with the quartiles on it, and its figures."""
    y = _TOP + _ROW * at + _ROW / 2
    name = _text(_LEFT - 8, y + 4, row.name, anchor="end")
    if row.figure is None:
        return [name, _text(_LEFT + 8, y + 4, row.note, "faint")]
    parts = [(math.log10(each) - first) / powers for each in row.figure]
    low, median, high = map(_number, row.figure)
    figures = f"{median}  ({low} to {high})"
    bar = bars_svg([Bar(at, parts[1], f"{row.name}: {figures}")])
    left, middle, right = (_LEFT + _AXIS * part for part in parts)
    return [
        name,
        f'<g class="{"ours" if row.ours else "others"}" {_turned()}>{bar}</g>',
        f'<path class="spread" d="M{left:.1f} {y:g}H{right:.1f}"/>',
        _text(max(middle, right) + 8, y + 4, figures),
    ]


def _turned() -> str:
    """Return the transformation that lays bars down: the first place is at the top."""
    scale = f"scale({_AXIS / AXIS:.4f} {_ROW / BAR:g})"
    return (
        f'transform="translate({_LEFT} {_TOP}) {scale} matrix(0 1 -1 0 {AXIS + 1} 0)"'
    )


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:g}" class="{kind}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )


def _number(value: float) -> str:
    """Return a number with three digits that count, and no exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{float(f'{value:.3g}'):.12g}"
