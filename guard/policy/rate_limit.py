"""Rates: how many calls in how much time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ..values.amounts import MICROSECONDS
from .base import PolicyModel
from .selectors import Selector

Per = Literal["global", "agent", "tool", "agent_tool"]
"""Calls that share a limit: all, those of one agent, those to one tool, or those of one
agent to one tool."""

_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
_RATE = re.compile(r"([0-9]{1,9}) */ *(?:([0-9]{1,6}) +)?(second|minute|hour|day)s?")


class RateLimit(PolicyModel):
    """A limit on calls in a time; written `"60/minute"` or `"100/15 minutes"`, in a
    table with other keys as `limit = "60/minute"` in place of `calls` and `seconds`.

    When it is reached a call is refused with `rate_limited` and an exact
    `retry_after`. A refused call does not count.
    """

    if TYPE_CHECKING:
        # Lists and plain texts are taken too.
        def __init__(self, **values: Any) -> None: ...

    calls: Annotated[int, Field(ge=1, le=100_000, strict=True)]
    """Calls admitted in each window."""

    seconds: Annotated[int, Field(ge=1, le=31_622_400, strict=True)]
    """Length of the window in seconds."""

    algorithm: Literal["window", "bucket"] = "window"
    """`window`: in no window of this length, wherever it starts, are more calls; it
    remembers each call, so at most 10,000. `bucket`: calls at an even pace, `burst`
    of them at once (the generic cell rate algorithm)."""

    burst: Annotated[int, Field(ge=1, le=100_000, strict=True)] | None = None
    """Calls of a bucket that may come at once. None: `calls`."""

    per: Per = "agent"
    """The calls that share it: `global` all, `agent` those of one agent, `tool` those
    to one tool, `agent_tool` those of one agent to one tool."""

    tools: tuple[Selector, ...] = ("*",)
    """The tools whose calls count, by name or glob."""

    dry_run: bool = False
    """Count and report, but refuse nothing."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        values = {"limit": value} if isinstance(value, str) else value
        if not isinstance(values, dict) or "limit" not in values:
            return values
        values = dict(values)
        found = _RATE.fullmatch(text := str(values.pop("limit")).strip())
        if found is None:
            raise ValueError(f"{text!r} is not a rate such as '60/minute'")
        if {"calls", "seconds"} & values.keys():
            raise ValueError("write either 'limit' or 'calls' and 'seconds'")
        seconds = int(found[2] or 1) * _SECONDS[found[3]]
        return {**values, "calls": int(found[1]), "seconds": seconds}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        written = handler(schema)
        fields = handler.resolve_ref_schema(written)
        fields["properties"]["limit"] = {"type": "string"}
        del fields["required"]
        return {"anyOf": [{"type": "string"}, written]}

    @model_validator(mode="after")
    def _fits_the_algorithm(self) -> RateLimit:
        if self.algorithm == "window" and self.burst is not None:
            raise ValueError("a burst belongs to algorithm='bucket'")
        if self.algorithm == "window" and self.calls > 10_000:
            raise ValueError("over 10,000 calls take algorithm='bucket'")
        return self

    @property
    def label(self) -> str:
        """The rate as text, as in `60/60s`."""
        return f"{self.calls}/{self.seconds}s"

    @property
    def window(self) -> int:
        """The window in microseconds."""
        return self.seconds * MICROSECONDS

    @property
    def interval(self) -> int:
        """Microseconds between calls of a bucket, rounded up; 0 for a window."""
        return -(-self.window // self.calls) if self.algorithm == "bucket" else 0
