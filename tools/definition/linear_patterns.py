"""Patterns of JSON Schema on an engine of linear time, pydantic's."""

from __future__ import annotations

import functools
from typing import Any

from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema

from toolcell.core import ConfigError

from .check_budget import spend


def check_patterns(tool: str, schema: dict[str, Any]) -> None:
    """Refuse patterns of a schema that no engine of linear time can run.

    Raises:
        ConfigError: There is one.
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
    spend(1, text)
    return _linear(pattern).isinstance_python(text)


@functools.lru_cache(maxsize=1024)
def _linear(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern))
