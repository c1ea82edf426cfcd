"""Positions of the values of a policy file: line and column of each."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import yaml

from toolcell.core import PolicyError

MAX_DEPTH = 50
_Location = tuple[str | int, ...]
_HEADER = re.compile(r"\s*(\[\[?)(.*?)\]\]?\s*(#.*)?$")
_NAME = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[\w-]+)"""
_KEY = re.compile(rf"\s*{_NAME}(?:\s*\.\s*{_NAME})*\s*=")


class SourcePositions:
    """Line and column of each value of a document, both counted from 1."""

    def __init__(self) -> None:
        self._positions: dict[_Location, tuple[int, int]] = {(): (1, 1)}

    def add(self, path: _Location, line: int, column: int) -> None:
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
    table: _Location = ()
    counts: dict[_Location, int] = {}
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


def _keys(header: str) -> _Location:
    """Return the keys of a table's header."""
    value: Any = tomllib.loads(f"{header} = 0")
    keys: list[str | int] = []
    while isinstance(value, dict):
        [(key, value)] = value.items()
        keys.append(key)
    return tuple(keys)


def _indexed(keys: _Location, counts: dict[_Location, int], *, add: bool) -> _Location:
    """Return keys with the number of the list item that each list is at."""
    path: _Location = ()
    for place, key in enumerate(keys):
        path = (*path, key)
        if add and place == len(keys) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


def yaml_document(path: Path, text: str) -> tuple[Any, SourcePositions]:
    """Return the plain values of a YAML document, and their positions.

    Only plain scalars, lists and maps are read. Anchors are refused, so that a small
    file cannot become a large value, and so are keys that stand twice.

    Raises:
        PolicyError: It is not such a document.
    """
    positions = SourcePositions()
    try:
        if any(isinstance(each, yaml.AliasToken) for each in yaml.scan(text)):
            raise PolicyError(
                f"{path}: aliases are not read; write the value again",
                hint="copy the value of the anchor to where the alias is",
            )
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return _value(node, (), positions), positions
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise PolicyError(
            f"{path}: {where}{error.problem}", hint="mend the YAML there"
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise PolicyError(
            f"{path}: {error}",
            hint="write it as plain YAML: mappings, lists and values",
        ) from None


def _value(node: Any, at: _Location, positions: SourcePositions) -> Any:
    if node is None:
        return None
    mark = node.start_mark
    positions.add(at, mark.line + 1, mark.column + 1)
    if len(at) > MAX_DEPTH:
        raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=mark)
    if isinstance(node, yaml.SequenceNode):
        items = enumerate(node.value)
        return [_value(item, (*at, index), positions) for index, item in items]
    if isinstance(node, yaml.MappingNode):
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            mark, key = key_node.start_mark, key_node.value
            if not isinstance(key_node, yaml.ScalarNode) or key in values:
                problem = f"key {key!r} stands twice, or is no text"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
            positions.add((*at, key), mark.line + 1, mark.column + 1)
            values[key] = _value(value_node, (*at, key), positions)
        return values
    return _scalar(node)


def _scalar(node: Any) -> Any:
    if node.tag == "tag:yaml.org,2002:float":
        try:
            return Decimal(node.value)
        except InvalidOperation:
            # Also .nan and .inf, which no field takes.
            return node.value
    match node.tag.removeprefix("tag:yaml.org,2002:"):
        case "str":
            return node.value
        case "int":
            return int(node.value)
        case "bool":
            return node.value.lower() in ("true", "yes", "on")
        case "null":
            return None
    raise yaml.MarkedYAMLError(
        problem=f"{node.tag} is not read; put the value in quotes",
        problem_mark=node.start_mark,
    )
