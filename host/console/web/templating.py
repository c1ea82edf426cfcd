"""The templates of pages: text of any origin is escaped, and hidden letters shown."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from toolcell.core.text.counted import counted
from toolcell.core.text.printable import escaped

from ...charts.bars import Bar, bars_svg, lines_svg
from . import programs

FOLDER = Path(__file__).resolve().parent.parent / "templates"

_EXCERPT = 90
"""Characters of the arguments of a call that a list shows."""

_JOINT = re.compile(r"(?<=[_\-./:@])(?=\w)")
_COLUMNS = re.compile(r"(?<!\\)\|")
_ESCAPED = re.compile(r"\\([\\|])")


def make_templates() -> Environment:
    """Return the environment of all templates."""
    templates = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.finalize = _visible
    templates.filters |= {"as_json": as_json, "counted": counted}
    templates.filters |= {"when": when, "clock": clock, "iso": iso, "span": span}
    templates.filters |= {"took": took, "excerpt": excerpt, "size": size}
    templates.filters |= {"amount": amount, "table": table}
    templates.filters |= {"breakable": breakable, "drawing": drawing}
    templates.filters |= {"program": programs.program, "terminal": programs.terminal}
    templates.filters |= {"failure": programs.failure}
    templates.filters |= {"frames_of_tools": programs.frames_of_tools}
    templates.globals |= {"language_of": programs.language_of}
    return templates


def _visible(value: Any) -> Any:
    """Return a value as a template shows it: no character in it is hidden."""
    # Markup, a subclass, is what a template made: it was escaped before.
    return escaped(value) if type(value) is str else value


def drawing(bars: Sequence[Bar], places: int) -> Markup:
    """Return a chart with lines at the end of its axis, half-way and at 0."""
    svg = lines_svg(places, (1, 0.5, 0)) + bars_svg(bars)
    return Markup(svg)  # noqa: S704 - labels are escaped


def breakable(name: str) -> Markup:
    """Return a name that lines may break in after `_`, `.` and the like alone."""
    return Markup("<wbr>").join(_JOINT.split(escaped(name)))


def as_json(value: Any, *, ascii_only: bool = False) -> str:
    """Return a JSON value as text with a line for each member."""
    text = json.dumps(value, indent=2, ensure_ascii=ascii_only)
    return text.replace("\x7f", "\\u007f")


def when(seconds: float) -> str:
    """Return a time, in seconds since 1970, as people read it."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock(seconds: float) -> str:
    """Return the time of the day of a time, in seconds since 1970."""
    return f"{datetime.fromtimestamp(seconds, UTC):%H:%M:%S}"


def iso(seconds: float) -> str:
    """Return a time, in seconds since 1970, as machines read it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def span(seconds: float) -> str:
    """Return a length of time in its two largest units, such as `4 min 10 s`."""
    left = max(0, round(seconds))
    parts: list[str] = []
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def took(milliseconds: float) -> str:
    """Return how long a call took, as people write it."""
    if milliseconds < 1_000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1_000
    return f"{seconds:.1f} s" if seconds < 60 else span(seconds)


def size(count: float) -> str:
    """Return a number of bytes as people write it, such as `2 MiB`."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1_024:
            return f"{count:.3g} {unit}" if count < 999.5 else f"{count:.0f} {unit}"
        count /= 1_024
    return f"{count:,.1f} TiB"


def amount(value: Any, unit: str) -> str:
    """Return an amount of a unit of budgets as people write it: `30.0 s of CPU`."""
    match unit:
        case "cpu_ms":
            return f"{took(float(value))} of CPU"
        case "wall_ms":
            return took(float(value))
        case "bytes":
            return size(float(value))
        case "usd":
            return f"{value} USD"
        case _:
            return f"{value} {unit}"


def excerpt(arguments: Mapping[str, Any]) -> str:
    """Return the begin of the arguments of a call, which tells it from others."""
    # One argument needs no name: it is the program, the query, the text.
    named = len(arguments) > 1
    texts = []
    for name, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value)
        short = " ".join(text[: 4 * _EXCERPT].split())
        texts.append(f"{name} {short}" if named else short)
        if sum(map(len, texts)) > _EXCERPT:
            break
    whole = " · ".join(texts)
    return whole if len(whole) <= _EXCERPT else f"{whole[: _EXCERPT - 1]}…"


class Table(NamedTuple):
    """A table that a program showed as Markdown, and the text below it."""

    heading: list[str]
    rows: list[list[str]]
    rest: str


def table(text: str) -> Table | None:
    """Return the table with which a text begins; None if it begins otherwise."""
    lines = text.split("\n")
    if len(lines) < 2 or not lines[0].startswith("| "):
        return None
    heading = _cells(lines[0])
    if _cells(lines[1]) != ["---"] * len(heading):
        return None
    count = 2
    # A row that was cut is text.
    while count < len(lines) and re.fullmatch(r"\| .* \|", lines[count]):
        count += 1
    rows = [_cells(line) for line in lines[2:count]]
    return Table(heading, rows, "\n".join(lines[count:]).strip())


def _cells(line: str) -> list[str]:
    parts = _COLUMNS.split(line.strip("|"))
    return [_ESCAPED.sub(r"\1", part.strip()) for part in parts]
