"""Patterns of JSON Schema on an engine of linear time, pydantic's."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema

from toolcell.core import ConfigError

from .check_budget import CHARACTERS, TooMuchToCheckError, kept, spend
from .pattern_size import PatternSize, UnmeasuredError, measured

MAX_BYTES = 64 << 20
"""Bytes of the compiled patterns of one schema, about: a thousand times `\\w`. When it
is exceeded the schema is refused."""

_EACH = 8_192
"""Bytes of the smallest pattern."""

_AT_ONCE = 32
"""Parts of a pattern that one step may look for at once."""


class _Pattern(NamedTuple):
    engine: SchemaValidator
    size: PatternSize


class _Compiled(dict[str, _Pattern]):
    """The patterns of one schema."""

    bytes = 0


def check_patterns(tool: str, schema: dict[str, Any]) -> None:
    """Refuse patterns of a schema that no engine of linear time can run.

    Called inside `bounded`, which keeps those that are compiled.

    Raises:
        ConfigError: There is one.
        TooMuchToCheckError: All of them are too large.
    """
    of_value = [schema["pattern"]] if "pattern" in schema else []
    for pattern in (*schema.get("patternProperties", ()), *of_value):
        try:
            _linear(pattern)
        except PatternError:
            raise ConfigError(
                f"the schema of {tool} has a pattern that cannot run in linear time",
                hint="write it without look-around and back-references",
                details={"pattern": pattern},
            ) from None


def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern is found in a text."""
    engine, size = _linear(pattern)
    times = 1 + size.at_once // _AT_ONCE
    spend(1 + times * len(text) // CHARACTERS)
    return engine.isinstance_python(text)


def _linear(pattern: str) -> _Pattern:
    compiled: _Compiled = kept().setdefault(_Compiled, _Compiled())
    if pattern not in compiled:
        try:
            size = measured(pattern)
        except UnmeasuredError:
            raise TooMuchToCheckError from None
        compiled.bytes += _EACH + size.bytes
        if compiled.bytes > MAX_BYTES:
            raise TooMuchToCheckError
        engine = SchemaValidator(core_schema.str_schema(pattern=pattern))
        compiled[pattern] = _Pattern(engine, size)
    return compiled[pattern]
