"""Tables that a program showed as Markdown, as people read them."""

from __future__ import annotations

import re
from typing import NamedTuple

_JOINT = re.compile(r"(?<!\\)\|")
_ESCAPED = re.compile(r"\\([\\|])")


class Table(NamedTuple):
    """A table, and the text below it."""

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
    parts = _JOINT.split(line.strip("|"))
    return [_ESCAPED.sub(r"\1", part.strip()) for part in parts]
