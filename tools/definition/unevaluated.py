"""The keywords `unevaluatedProperties` and `unevaluatedItems`, in linear time.

jsonschema searches names for them with an engine that may take exponential time, and
looks for each part of a value in a list of all that were evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jsonschema.exceptions import ValidationError
from referencing.jsonschema import lookup_recursive_ref, specification_with

from .check_budget import spend
from .linear_patterns import matches

_Own = Callable[[Any, Any, dict[str, Any]], Iterable[Any]]
_Errors = Iterator[ValidationError]


def unevaluated_properties(
    validator: Any, inner: Any, instance: Any, schema: dict[str, Any]
) -> _Errors:
    """Check the properties that no keyword beside it, or inside of these, looks at."""
    if isinstance(instance, dict):
        beside = {**schema}
        del beside["unevaluatedProperties"]
        evaluated = _evaluated(validator, instance, beside, _names)
        yield from _errors(validator, inner, instance, instance.keys() - evaluated)


def unevaluated_items(
    validator: Any, inner: Any, instance: Any, schema: dict[str, Any]
) -> _Errors:
    """Check the items that no keyword beside it, or inside of these, looks at."""
    if isinstance(instance, list):
        beside = {**schema}
        del beside["unevaluatedItems"]
        evaluated = _evaluated(validator, instance, beside, _indexes)
        yield from _errors(
            validator, inner, instance, set(range(len(instance))) - evaluated
        )


def _errors(validator: Any, inner: Any, instance: Any, parts: set[Any]) -> _Errors:
    if not all(_fits(validator, instance[part], inner) for part in parts):
        yield ValidationError("unevaluated")


def _fits(validator: Any, instance: Any, schema: Any) -> bool:
    return next(validator.descend(instance, schema), None) is None


def _evaluated(validator: Any, instance: Any, schema: Any, own: _Own) -> set[Any]:
    """Return the names or indexes that a schema which fits looks at."""
    spend(1, instance)
    if not isinstance(schema, dict):
        return set()
    found = set(own(validator, instance, schema))
    for owner, inner in _in_place(validator, instance, schema):
        found |= _evaluated(owner, instance, inner, own)
    return found


def _names(validator: Any, instance: Any, schema: dict[str, Any]) -> Iterable[str]:
    if schema.keys() & {"additionalProperties", "unevaluatedProperties"}:
        return list(instance)
    named = schema.get("properties", {})
    patterns = schema.get("patternProperties", ())
    return (
        name
        for name in instance
        if name in named or any(matches(pattern, name) for pattern in patterns)
    )


def _indexes(validator: Any, instance: Any, schema: dict[str, Any]) -> Iterable[int]:
    items = schema.get("items", [])
    if not isinstance(items, list) or schema.keys() & {
        "additionalItems",
        "unevaluatedItems",
    }:
        return range(len(instance))
    first = max(len(items), len(schema.get("prefixItems", ())))
    contained = (
        index
        for index, item in enumerate(instance)
        if "contains" in schema and _fits(validator, item, schema["contains"])
    )
    return {*range(min(first, len(instance))), *contained}


def _in_place(
    validator: Any, instance: Any, schema: dict[str, Any]
) -> Iterator[tuple[Any, Any]]:
    """Yield the schemas that look at the same value and fit, with their validators."""
    resolver = validator._resolver
    found = [
        resolver.lookup(schema[keyword])
        for keyword in ("$ref", "$dynamicRef")
        if keyword in schema
    ]
    if "$recursiveRef" in schema:
        found.append(lookup_recursive_ref(resolver))
    for part in found:
        yield (
            validator.evolve(schema=part.contents, _resolver=part.resolver),
            part.contents,
        )
    for keyword in ("allOf", "anyOf", "oneOf"):
        for inner in schema.get(keyword, ()):
            if _fits(validator, instance, inner):
                yield _inside(validator, inner)
    if "if" in schema:
        is_so = _fits(validator, instance, schema["if"])
        if is_so:
            yield _inside(validator, schema["if"])
        yield _inside(validator, schema.get("then" if is_so else "else", True))
    for name, inner in schema.get("dependentSchemas", {}).items():
        if name in instance:
            yield _inside(validator, inner)


def _inside(validator: Any, inner: Any) -> tuple[Any, Any]:
    """Return an inner schema and its validator: its `$id` is the base of references."""
    resource = specification_with(validator.META_SCHEMA["$schema"]).create_resource(
        inner
    )
    resolver = validator._resolver.in_subresource(resource)
    return validator.evolve(schema=inner, _resolver=resolver), inner
