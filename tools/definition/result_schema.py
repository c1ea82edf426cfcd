"""The JSON Schema of a function's result."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from pydantic import TypeAdapter

from .signature import plain_function, resolve_annotations

_SAYS_NOTHING = (Any, None, type(None), object, inspect.Signature.empty)
_AWAITED = (Awaitable, Coroutine)
_DATA = ("const", "default", "enum", "examples")
"""Keywords that hold values, and no schemas."""


def result_schema(
    function: Callable[..., Any], namespace: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the JSON Schema of a function's result; None if it is not annotated.

    Args:
        function: Anything callable.
        namespace: Names that the annotation may use besides the function's own.
    """
    written = getattr(plain_function(function), "__annotations__", {}).get("return")
    if written in _SAYS_NOTHING or written in ("None", "Any", "object"):
        return None
    parameter = inspect.Parameter(
        "result", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=written
    )
    try:
        found = resolve_annotations(function, [parameter], namespace)["result"]
        if typing.get_origin(found) in _AWAITED:
            found = typing.get_args(found)[-1]
        if found in _SAYS_NOTHING or isinstance(found, types.NoneType):
            return None
        schema = TypeAdapter(found).json_schema(mode="serialization")
    except Exception:  # noqa: BLE001 - a type's own code makes its schema
        # Any type may be returned that has a JSON form, known beforehand or not.
        return None
    return _at_root(_without_formats(schema)) or None


def _without_formats(schema: Any) -> Any:
    """Return a schema without `format`, which Python's own values do not keep to.

    A naive datetime is no `date-time` and a long timedelta no `duration`; clients that
    check formats would discard the whole result, after the tool had its effect.
    """
    if isinstance(schema, list):
        return [_without_formats(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in _DATA else _without_formats(value)
        for key, value in schema.items()
        if not (key == "format" and isinstance(value, str))
    }


def _at_root(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose root is no reference: clients look for a type there."""
    reference = schema.get("$ref", "")
    if not reference.startswith("#/$defs/"):
        return schema
    definitions = schema["$defs"]
    return {**definitions[reference.removeprefix("#/$defs/")], "$defs": definitions}
