"""Whether a function can run in a cell: what goes in is its source and JSON."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from toolcell.core import ConfigError, InvalidInputError
from toolcell.guard import Redactor
from toolcell.sandbox import call_program

_PLAIN = (Any, str, int, float, bool, None, type(None), list, dict)


def check_travels(
    name: str, function: Callable[..., Any], hints: Mapping[str, Any]
) -> None:
    """Refuse a sandboxed tool that could not be called in a cell.

    Args:
        name: The tool's name.
        function: What would run there.
        hints: The types of its parameters.

    Raises:
        ConfigError: The function holds on to what stays here, or takes what is not
            plain JSON.
    """
    for parameter, hint in hints.items():
        if not _is_plain(hint):
            raise ConfigError(
                f"{name} runs in a cell, where {parameter} arrives as plain JSON",
                hint="annotate it with str, int, float, bool, list or dict",
            )
    try:
        _, inputs = call_program(function, (), {})
    except InvalidInputError as error:
        raise ConfigError(
            f"{name} cannot run in a cell: {error.message}", hint=error.hint
        ) from None
    if Redactor()(inputs) != inputs:
        raise ConfigError(
            f"{name} refers to a global value that looks like a secret, and would take "
            "it along into a cell",
            hint="leave secrets on the host",
        )


def _is_plain(annotation: Any) -> bool:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _is_plain(inner[0])
    if origin in (list, dict, typing.Union, types.UnionType):
        return all(_is_plain(each) for each in inner)
    return origin is Literal or annotation in _PLAIN
