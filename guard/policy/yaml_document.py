"""Plain values of a YAML policy file, with the position of each."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import yaml

from toolcell.core import PolicyError
from toolcell.core.text.source_positions import Location, SourcePositions

MAX_DEPTH = 50


def yaml_document(path: Path, text: str) -> tuple[Any, SourcePositions]:
    """Return the plain values of a YAML document, and their positions.

    Only plain scalars, lists and maps are read. Anchors are refused, so that a small
    file cannot become a large value, and so are keys that stand twice.

    Raises:
        PolicyError: It is not such a document.
    """
    positions = SourcePositions()
    try:
        _check(path, text)
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


def _check(path: Path, text: str) -> None:
    """Refuse aliases, and depth: what is open is looked at again for each token."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise PolicyError(
                f"{path}: aliases are not read; write the value again",
                hint="copy the value of the anchor to where the alias is",
            )
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            mark: Any = event.start_mark
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=mark)


def _value(node: Any, at: Location, positions: SourcePositions) -> Any:
    if node is None:
        return None
    mark = node.start_mark
    positions.add(at, mark.line + 1, mark.column + 1)
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
