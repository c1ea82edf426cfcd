"""Positions of the values of a TOML file: line and column of each."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

Location = tuple[str | int, ...]
"""The keys and list indexes that lead to a value."""

_HEADER = re.compile(r"\s*(\[\[?)(.*?)\]\]?\s*(#.*)?$")
_NAME = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[\w-]+)"""
_KEY = re.compile(rf"\s*{_NAME}(?:\s*\.\s*{_NAME})*\s*=")


class SourcePositions:
    """Line and column of each value of a document, both counted from 1."""

    def __init__(self) -> None:
        self._positions: dict[Location, tuple[int, int]] = {(): (1, 1)}

    def add(self, path: Location, line: int, column: int) -> None:
        """Note the line and column of a value."""
        self._positions.setdefault(path, (line, column))

    def find(self, location: Sequence[str | int]) -> tuple[int, int]:
        """Return the line and column of a value, or of the nearest one around it."""
        path = tuple(location)
        while path not in self._positions:
            path = path[:-1]
        return self._positions[path]


def toml_positions(text: str) -> SourcePositions:
    """Return the positions of the values of a valid TOML document, by their lines.

    No library gives them. A value that takes many lines has the position of its key.
    """
    positions = SourcePositions()
    table: Location = ()
    counts: dict[Location, int] = {}
    for number, column, statement in _statements(text):
        if header := _HEADER.match(statement):
            table = _indexed(_keys(header[2]), counts, add=header[1] == "[[")
            positions.add(table, number, column)
        else:
            value: Any = tomllib.loads(statement)
            path = table
            while isinstance(value, dict) and len(value) == 1:
                [(key, value)] = value.items()
                path = (*path, key)
                positions.add(path, number, column)
    return positions


def _statements(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield line, column and text of each header and each key with its value."""
    lines = text.split("\n")
    start = 0
    while start < len(lines):
        line = lines[start].strip()
        end = start + 1
        if _HEADER.match(line):
            yield start + 1, lines[start].index("[") + 1, line
        elif line and not line.startswith("#"):
            # A value goes on until another statement begins, and it can be read alone.
            while end < len(lines) and not (
                _may_begin(lines[end]) and _is_whole("\n".join(lines[start:end]))
            ):
                end += 1
            column = len(lines[start]) - len(lines[start].lstrip()) + 1
            yield start + 1, column, "\n".join(lines[start:end])
        start = end


def _may_begin(line: str) -> bool:
    """Tell whether a line may be the first of a statement, and not the rest of one."""
    return bool(_KEY.match(line) or _HEADER.match(line))


def _is_whole(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _keys(header: str) -> Location:
    """Return the keys of a table's header."""
    value: Any = tomllib.loads(f"{header} = 0")
    keys: list[str | int] = []
    while isinstance(value, dict):
        [(key, value)] = value.items()
        keys.append(key)
    return tuple(keys)


def _indexed(keys: Location, counts: dict[Location, int], *, add: bool) -> Location:
    """Return keys with the number of the list item that each list is at."""
    path: Location = ()
    for place, key in enumerate(keys):
        path = (*path, key)
        if add and place == len(keys) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path
