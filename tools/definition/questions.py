"""Questions to the user at the client of a call, and their answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class UserQuestion:
    """A form that an MCP server has for the user."""

    server: str
    """The server that asks."""

    message: str
    """The server's words; they begin with whose they are."""

    fields: Mapping[str, Any]
    """The JSON Schema of an answer: an object without objects in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAnswer:
    """The answer to a question."""

    action: Literal["accept", "decline", "cancel"]
    """`decline` is a no, and `cancel` no answer."""

    content: Mapping[str, JsonValue] = field(default_factory=dict)
    """The values of an accepted form, by field."""


AskUser = Callable[[UserQuestion], Awaitable[UserAnswer]]
