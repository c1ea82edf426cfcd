"""Keywords of JSON Schema that take linear time, where those of jsonschema do not.

A schema may come from another program and its values from a model. jsonschema runs
patterns on an engine that may take exponential time, compares each item of a list with
each other one, and a value with each of an `enum` through all of their levels. Here
patterns run on pydantic's engine, and values are compared by their canonical form.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from toolcell.core.text.canonical_json import canonical_json

from .check_budget import counted, kept, spend
from .linear_patterns import matches
from .unevaluated import unevaluated_items, unevaluated_properties

_LARGEST_EXACT = 2**53
_Errors = Iterator[ValidationError]


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text, with numbers as JSON Schema counts them."""
    return json.loads(text, parse_float=_number)


def _number(text: str) -> int | float:
    """Return 2 for 2.0: in JSON Schema both are the same number, so the same call."""
    number = float(text)
    exact = number.is_integer() and abs(number) < _LARGEST_EXACT
    return int(number) if exact else number


def _pattern(validator: Validator, pattern: str, instance: Any, schema: Any) -> _Errors:
    if isinstance(instance, str) and not matches(pattern, instance):
        yield ValidationError("does not match")


def _pattern_properties(
    validator: Any, patterns: dict[str, Any], instance: Any, schema: Any
) -> _Errors:
    if isinstance(instance, dict):
        for pattern, inner in patterns.items():
            for name in [name for name in instance if matches(pattern, name)]:
                yield from validator.descend(
                    instance[name], inner, path=name, schema_path=pattern
                )


def _additional_properties(
    validator: Any, inner: Any, instance: Any, schema: dict[str, Any]
) -> _Errors:
    for name in unnamed_keys(instance, schema):
        if isinstance(inner, dict):
            yield from validator.descend(instance[name], inner, path=name)
        elif inner is False:
            yield ValidationError("unknown")
            return


def unnamed_keys(instance: Any, schema: dict[str, Any]) -> list[str]:
    """Return the keys of an object that its schema does not name."""
    if not isinstance(instance, dict):
        return []
    named = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    return [
        name
        for name in instance
        if name not in named and not any(matches(pattern, name) for pattern in patterns)
    ]


def _unique_items(
    validator: Validator, unique: bool, instance: Any, schema: Any
) -> _Errors:
    if unique and isinstance(instance, list):
        spend(len(instance))
        if len({_written(item) for item in _alike(instance)}) < len(instance):
            yield ValidationError("not unique")


def _enum(
    validator: Validator, choices: list[Any], instance: Any, schema: Any
) -> _Errors:
    if _form(instance) not in _forms(choices):
        yield ValidationError("not one of these")


def _const(validator: Validator, wanted: Any, instance: Any, schema: Any) -> _Errors:
    if _form(instance) != _form(wanted):
        yield ValidationError("another value")


def prepare_values(schema: dict[str, Any]) -> None:
    """Keep the values that a schema names in the form in which they are compared.

    Called inside `bounded`.
    """
    if isinstance(schema.get("enum"), list):
        _forms(schema["enum"])


def _forms(values: list[Any]) -> frozenset[bytes]:
    """Return the forms of values; those of a list are kept as long as its schema."""
    prepared = kept()
    # The schema, which holds the list, lives as long as what is kept for it.
    if id(values) not in prepared:
        prepared[id(values)] = frozenset(map(_form, values))
    forms: frozenset[bytes] = prepared[id(values)]
    return forms


def _form(value: Any) -> bytes:
    return _written(_alike(value))


def _alike(value: Any) -> Any:
    """Return a value in which equal numbers are written alike: 1 for 1.0."""
    return json.loads(_written(value), parse_float=_whole)


def _written(value: Any) -> bytes:
    text = canonical_json(value)
    spend(0, text)
    return text


def _whole(text: str) -> int | float:
    number = float(text)
    return int(number) if number.is_integer() else number


_OURS = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
    "enum": _enum,
    "const": _const,
    "unevaluatedProperties": unevaluated_properties,
    "unevaluatedItems": unevaluated_items,
}


@functools.cache
def linear_validator_class(known: Any) -> Any:
    """Return a validator class that takes linear time where jsonschema does not.

    Its validators are used inside `bounded`.
    """
    every = {
        name: counted(_OURS.get(name, theirs))
        for name, theirs in known.VALIDATORS.items()
    }
    made: Any = extend(known, validators=every)  # type: ignore[no-untyped-call]
    made.evolve = _evolve
    return made


def _evolve(validator: Any, **changes: Any) -> Any:
    # That of jsonschema takes its own class for a schema with `$schema`.
    return type(validator)(
        changes.get("schema", validator.schema),
        registry=validator._registry,
        _resolver=changes.get("_resolver", validator._resolver),
    )
