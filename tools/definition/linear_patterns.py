"""Patterns of JSON Schema on an engine of linear time, pydantic's."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema

from toolcell.core import ConfigError

from .check_budget import TooMuchToCheckError, kept, spend

MAX_SIZE = 20_000
"""Size of the patterns of one schema, in about 4 KiB of memory: 100 for each, and 1 for
each character and repetition, 16 where there are classes of all alphabets. When it is
exceeded the schema is refused."""

_EACH, _WIDE = 100, 16

_AT_ONCE = 32
"""Parts of a pattern that one step may look for at once."""

_WIDE_CLASS = re.compile(r"\\[wWpP]")
_COUNT = re.compile(r"(.?)\{([0-9,\s]+)\}", re.DOTALL)
_ENDS_GROUP = (*")}?*+", "")
_HIDES_COUNTS = re.compile(r"(?<!\\)(?:\\\\)*\(\?[\w-]*x")
"""The flag `x`: comments may stand inside of a count."""


class _Pattern(NamedTuple):
    engine: SchemaValidator
    parts: int
    size: int


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
    engine, parts, _ = _linear(pattern)
    times = 1 + parts // _AT_ONCE
    spend(times, *[text] * times)
    return engine.isinstance_python(text)


def _linear(pattern: str) -> _Pattern:
    compiled: dict[str, _Pattern] = kept().setdefault(_Pattern, {})
    if pattern not in compiled:
        parts = _parts(pattern)
        size = _EACH + parts * (_WIDE if _WIDE_CLASS.search(pattern) else 1)
        if size + sum(each.size for each in compiled.values()) > MAX_SIZE:
            raise TooMuchToCheckError
        engine = SchemaValidator(core_schema.str_schema(pattern=pattern))
        compiled[pattern] = _Pattern(engine, parts, size)
    return compiled[pattern]


def _parts(pattern: str) -> int:
    """Return the most parts that a pattern has when its counts are written out."""
    if len(pattern) > MAX_SIZE or _HIDES_COUNTS.search(pattern):
        raise TooMuchToCheckError
    single, groups = len(pattern), 1
    for before, written in _COUNT.findall(pattern):
        count = max(map(int, re.findall("[1-9][0-9]*", written)), default=1)
        if before in _ENDS_GROUP:
            groups *= count
        else:
            single += count
    return single * groups
