"""Patterns of JSON Schema on an engine of linear time, pydantic's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema

from toolcell.core import ConfigError

from .check_budget import CHARACTERS, TooMuchToCheckError, kept, spend
from .pattern_size import PatternSize, UnmeasuredError, measured

MAX_BYTES = 64 << 20
"""Bytes of the compiled patterns of one schema, about: a thousand times `\\w`. When it
is exceeded the schema is refused."""

MAX_SHARED_BYTES = 256 << 20
"""Bytes of the compiled patterns of all schemas of one server, equal ones once. When it
is exceeded the schema is refused, and others that fit are not."""

_EACH = 8_192
"""Bytes of the smallest pattern."""

_AT_ONCE = 32
"""Parts of a pattern that one step may look for at once."""


class _Pattern(NamedTuple):
    engine: SchemaValidator
    size: PatternSize


class _Compiled(dict[str, _Pattern]):
    """The patterns of one schema, or of all schemas of one server.

    Args:
        max_bytes: Bytes of them.
    """

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes

    def takes(self, size: PatternSize) -> bool:
        """Return True if one more pattern fits; it is counted then."""
        more = _EACH + size.bytes
        if more > self._left:
            return False
        self._left -= more
        return True


_shared: ContextVar[_Compiled] = ContextVar("shared")


@contextmanager
def shared_patterns() -> Iterator[None]:
    """Keep the patterns of all schemas that are checked inside together, each once.

    They take at most `MAX_SHARED_BYTES`.
    """
    token = _shared.set(_Compiled(MAX_SHARED_BYTES))
    try:
        yield
    finally:
        _shared.reset(token)


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
    own: _Compiled = kept().setdefault(_Compiled, _Compiled(MAX_BYTES))
    if pattern not in own:
        own[pattern] = _compiled(pattern, own)
    return own[pattern]


def _compiled(pattern: str, own: _Compiled) -> _Pattern:
    try:
        size = measured(pattern)
    except UnmeasuredError:
        raise TooMuchToCheckError from None
    if not own.takes(size):
        raise TooMuchToCheckError
    shared = _shared.get(_Compiled(MAX_SHARED_BYTES))
    if pattern not in shared:
        if not shared.takes(size):
            raise ConfigError(
                "the patterns of all tools of its server are too large together",
                hint="its server has to write fewer or shorter ones",
            )
        engine = SchemaValidator(core_schema.str_schema(pattern=pattern))
        shared[pattern] = _Pattern(engine, size)
    return shared[pattern]
