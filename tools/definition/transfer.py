"""Builds the program that calls a tool's function in a cell, of source and JSON."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from toolcell.core import ConfigError, InvalidInputError
from toolcell.guard import Redactor
from toolcell.sandbox.spi import CallProgram, call_program

_PIECE = 4_000
"""Characters of a text that are searched for secrets in one step."""

_redact = Redactor()
_PLAIN = (Any, str, int, float, bool, None, type(None), list, dict)


def check_transferable(
    name: str, function: Callable[..., Any], hints: Mapping[str, Any]
) -> None:
    """Refuse a sandboxed tool that could not be called in a cell.

    Args:
        name: The tool's name.
        function: The function that would run there.
        hints: The types of its parameters.

    Raises:
        ConfigError: The function refers to something that stays on the host, or takes
            a parameter that is not plain JSON.
    """
    for parameter, hint in hints.items():
        if not _is_plain(hint):
            raise ConfigError(
                f"{name} runs in a cell, where {parameter} arrives as plain JSON",
                hint="annotate it with str, int, float, bool, list or dict",
            )
    build_cell_call(name, function, {})


def build_cell_call(
    name: str, function: Callable[..., Any], arguments: Mapping[str, Any]
) -> CallProgram:
    """Return the program that calls a tool's function in a cell.

    Raises:
        ConfigError: The function refers to something that stays on the host. Its
            references may have changed since it was registered.
    """
    try:
        program = call_program(function, (), dict(arguments))
    except InvalidInputError as error:
        raise ConfigError(
            f"{name} cannot run in a cell: {error.message}", hint=error.hint
        ) from None
    for held, value in program.values:
        if _holds_secret(held, value):
            raise ConfigError(
                f"{name} refers to {held}, which looks like a secret, and would take "
                "it along into a cell",
                hint="leave secrets on the host",
            )
    return program


def _holds_secret(name: str, value: Any) -> bool:
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    # Pieces that overlap: the redactor cuts long texts.
    starts = range(0, max(1, len(text) - _PIECE // 2), _PIECE // 2)
    pieces = [{name: text[start : start + _PIECE]} for start in starts]
    return bool(value) and any(_redact(piece) != piece for piece in pieces)


def _is_plain(annotation: Any) -> bool:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _is_plain(inner[0])
    if origin in (list, dict, typing.Union, types.UnionType):
        return all(_is_plain(each) for each in inner)
    return origin is Literal or annotation in _PLAIN
