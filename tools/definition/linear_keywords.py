"""Keywords of JSON Schema that take linear time, where those of jsonschema do not.

A schema may come from another program and its values from a model. jsonschema runs
patterns on an engine that may take exponential time, and compares each item of a list
with each other one. Here patterns run on pydantic's engine, and items are compared by
their canonical form.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from typing import Any

from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema

from toolcell.core import ConfigError
from toolcell.core.text.canonical_json import canonical_json

from .check_budget import counted

_LARGEST_EXACT = 2**53
# Without groups and with one repetition at most, no engine takes exponential time.
_PLAIN_PATTERN = re.compile(r"[^(){}*+?\\]*[*+?]?[^(){}*+?\\]*")
_Errors = Iterator[ValidationError]


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text, with numbers as JSON Schema counts them."""
    return json.loads(text, parse_float=_number)


def _number(text: str) -> int | float:
    """Return 2 for 2.0: in JSON Schema both are the same number, so the same call."""
    number = float(text)
    exact = number.is_integer() and abs(number) < _LARGEST_EXACT
    return int(number) if exact else number


def check_patterns(tool: str, parts: list[Any]) -> None:
    """Refuse patterns that no engine of linear time can run."""
    schemas = [each for each in parts if isinstance(each, dict)]
    of_names = [
        pattern for each in schemas for pattern in each.get("patternProperties", ())
    ]
    of_values = [each["pattern"] for each in schemas if "pattern" in each]
    for pattern in (*of_names, *of_values):
        try:
            _linear_pattern(pattern)
        except PatternError:
            raise ConfigError(
                f"the schema of {tool} has a pattern that cannot run in linear time",
                hint="write it without look-around and back-references",
                details={"pattern": pattern},
            ) from None
    # Here jsonschema searches with an engine that goes back and forth.
    if any("unevaluatedProperties" in each for each in schemas):
        for pattern in of_names:
            if not _PLAIN_PATTERN.fullmatch(pattern):
                raise ConfigError(
                    f"the schema of {tool} has a pattern that may take too long",
                    hint="write patternProperties beside unevaluatedProperties"
                    " without groups, and with one repetition",
                    details={"pattern": pattern},
                )


@functools.lru_cache(maxsize=1024)
def _linear_pattern(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern))


def _matches(pattern: str, text: str) -> bool:
    return _linear_pattern(pattern).isinstance_python(text)


def _pattern(validator: Validator, pattern: str, instance: Any, schema: Any) -> _Errors:
    if isinstance(instance, str) and not _matches(pattern, instance):
        yield ValidationError("does not match")


def _pattern_properties(
    validator: Any, patterns: dict[str, Any], instance: Any, schema: Any
) -> _Errors:
    if isinstance(instance, dict):
        for pattern, inner in patterns.items():
            for name in [name for name in instance if _matches(pattern, name)]:
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
        if name not in named and not any(_matches(each, name) for each in patterns)
    ]


def _unique_items(
    validator: Validator, unique: bool, instance: Any, schema: Any
) -> _Errors:
    # jsonschema compares each item with each other one.
    if unique and isinstance(instance, list):
        items = parse_json(canonical_json(instance))
        if len({canonical_json(each) for each in items}) < len(items):
            yield ValidationError("not unique")


@functools.cache
def linear_validator_class(known: Any) -> Any:
    """Return a validator class that takes linear time where jsonschema does not.

    Its validators are used inside `bounded`.
    """
    keywords = {
        **known.VALIDATORS,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    every = {name: counted(keyword) for name, keyword in keywords.items()}
    return extend(known, validators=every)  # type: ignore[no-untyped-call]
