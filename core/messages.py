"""The values that models and tools exchange: messages, calls and results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue, model_validator

from .content_parts import Part
from .errors import ToolcellError
from .models import (
    DECIMAL,
    Count,
    DecimalText,
    FrozenModel,
    Id,
    JsonCopy,
    JsonObjectCopy,
    WholeText,
    construct_unchecked,
    copied,
    json_text,
)
from .text.strict_json import read_json

ToolStatus = Literal["ok", "error", "denied", "timeout", "cancelled"]
"""The end of a call: it returned, it failed, the guard refused it, it was stopped
at its deadline, or the caller gave it up."""


MALFORMED_CHARACTERS = 10_000
"""Characters of a text that is no arguments. When it is reached the rest is cut."""


class Role(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


def _readable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _tellable(details: dict[str, Any]) -> dict[str, Any]:
    """Return details as JSON. Describing an error must not itself fail."""
    try:
        return dict(copied(details))
    except (TypeError, ValueError):
        return {_readable(str(key)): _readable(repr(details[key])) for key in details}


class _Record(FrozenModel):
    """An immutable value of a conversation."""

    # Built at first use: not every command speaks to a model.
    model_config = ConfigDict(defer_build=True)


def _is_simple(content: Any) -> bool:
    """Tell a value that needs no copy and no check."""
    kind = type(content)
    if kind is str:
        return bool(content.isascii())
    return kind is int or kind is bool or content is None


def _is_amount(amount: int | str) -> bool:
    """Tell an amount that needs no check."""
    if type(amount) is int:
        return amount >= 0
    return type(amount) is str and DECIMAL.fullmatch(amount) is not None


_RETURNED = {"call_id", "name", "content", "usage", "parts"}
_CALLED = {"id", "name", "arguments", "agent_id", "parent_id"}


class ToolCall(_Record):
    """A call that a model asks for.

    The arguments are copied: what the caller keeps cannot change the call.
    """

    id: Id
    name: Id
    arguments: JsonObjectCopy = Field(default_factory=dict)
    """Values by name, or the JSON text of an object, as some models write it; an empty
    text and `null` are no arguments."""

    agent_id: Id | None = None
    """The agent that asks; a label until a host has bound it."""

    parent_id: Id | None = None
    """The call inside which this one was made."""

    malformed: str | None = Field(default=None, exclude_if=lambda text: text is None)
    """The text of a model that was to be arguments, and is no JSON object; at most
    10,000 characters, the rest is cut. Such a call is refused, as `invalid_input`, so
    that its model learns of it. None: it has arguments."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, values: Any) -> Any:
        """Read arguments that a model wrote as JSON text."""
        if type(values) is not dict or not isinstance(values.get("arguments"), str):
            return values
        text = values["arguments"]
        try:
            read = (read_json(text) if text.strip() else None) or {}
        except ValueError:
            read = None
        if isinstance(read, dict):
            return {**values, "arguments": read}
        kept = _readable(text[:MALFORMED_CHARACTERS])
        return {**values, "arguments": {}, "malformed": kept}

    @model_validator(mode="after")
    def _has_one_of_both(self) -> ToolCall:
        if self.malformed is not None and self.arguments:
            raise ValueError("a call with arguments is not malformed")
        return self

    @property
    def why_malformed(self) -> str:
        """The reason why the text is no JSON object; empty: there are arguments."""
        if self.malformed is None:
            return ""
        try:
            read_json(self.malformed)
        except json.JSONDecodeError as error:
            return f"at character {error.pos} {error.msg.lower()}"
        except ValueError as error:
            return str(error)
        return "it is no object"

    def validated(self, name: str, arguments: dict[str, JsonValue]) -> ToolCall:
        """Return this call with what its tool was found by and will get.

        Args:
            name: The tool's own name.
            arguments: JSON values; not copied.
        """
        fields = {**self.__dict__, "name": name, "arguments": arguments}
        return construct_unchecked(ToolCall, fields, _CALLED)

    def to_openai_format(self) -> dict[str, Any]:
        """Return an entry of `tool_calls` of Chat Completions."""
        text = json_text(self.arguments) if self.malformed is None else self.malformed
        function = {"name": self.name, "arguments": text}
        return {"id": self.id, "type": "function", "function": function}

    def to_anthropic_format(self) -> dict[str, Any]:
        """Return a `tool_use` block of the Messages API."""
        return {
            "type": "tool_use",
            "id": self.id,
            "name": self.name,
            "input": copied(self.arguments),
        }


class ErrorInfo(_Record):
    """An error as data, for models, logs and clients."""

    kind: Id
    """`ToolcellError.kind` of the error's class."""

    message: Annotated[WholeText, Field(min_length=1)]
    hint: WholeText | None = None
    """Advice for the caller; None: there is none."""

    retryable: bool = False
    """True if the same call may succeed later without a change."""

    details: JsonObjectCopy = Field(default_factory=dict)

    @classmethod
    def of(cls, error: ToolcellError) -> ErrorInfo:
        """Describe an error that was raised."""
        return cls(
            kind=error.kind,
            message=_readable(error.message) or type(error).__name__,
            hint=None if error.hint is None else _readable(error.hint),
            retryable=error.retryable,
            details=_tellable(error.details),
        )


class ToolResult(_Record):
    """The result of one call; each call has exactly one."""

    call_id: Id
    name: Id
    status: ToolStatus = "ok"
    content: JsonCopy = None
    """The tool's return value; of a failed call, what it had returned until then."""

    error: ErrorInfo | None = None
    """The reason of a failure; None if and only if the status is `ok`."""

    usage: dict[Id, Count | DecimalText] = Field(default_factory=dict)
    """Amounts that the call used, by unit: integers, or decimals as text (`usd`)."""

    remaining: dict[str, Count | DecimalText] = Field(default_factory=dict)
    """Amounts that are left to the agent after the call, by the limit's name; empty
    unless `tell_remaining` is set."""

    parts: tuple[Part, ...] = Field(default=(), repr=False)
    """Pictures and texts that a model sees besides the content. Stores of records and
    results do not keep them."""

    @model_validator(mode="after")
    def _one_outcome(self) -> ToolResult:
        if (self.status == "ok") is not (self.error is None):
            raise ValueError("a status other than 'ok' needs an error, 'ok' has none")
        return self

    @classmethod
    def returned(
        cls,
        call: ToolCall,
        content: JsonValue,
        usage: Mapping[str, int | str],
        parts: Sequence[Part] = (),
    ) -> ToolResult:
        """Return the result of a call whose tool returned.

        Args:
            call: The call.
            content: What the tool returned.
            usage: What it used, by unit.
            parts: Pictures and texts besides the content.

        Raises:
            InvalidInputError: The content is no JSON value, or a usage no amount.
        """
        fields: dict[str, Any] = {
            "call_id": call.id,
            "name": call.name,
            "status": "ok",
            "content": content,
            "error": None,
            "usage": dict(usage),
            "remaining": {},
            "parts": tuple(parts) if parts else (),
        }
        if not all(map(_is_amount, usage.values())):
            return cls(**fields)
        if not _is_simple(content):
            try:
                # The model's own check takes ten times as long as a copy.
                fields["content"] = copied(content)
            except (TypeError, ValueError):
                return cls(**fields)
        return construct_unchecked(cls, fields, _RETURNED)

    @classmethod
    def failed(
        cls,
        call_id: str,
        name: str,
        error: ToolcellError,
        *,
        status: Literal["error", "denied", "timeout", "cancelled"] = "error",
        content: JsonValue = None,
    ) -> ToolResult:
        """Return the result of a call that an error ended."""
        return cls(
            call_id=call_id,
            name=name,
            status=status,
            content=content,
            error=ErrorInfo.of(error),
        )

    @property
    def ok(self) -> bool:
        """True if the tool returned a value."""
        return self.error is None

    def to_text(self) -> str:
        """Return what the model reads: text as it is, other values as JSON.

        A failed call reads as a JSON object with its status and error, and what
        content there is; it is never empty. What remains of limits, if it is known, is
        in that object too, or in its own last line.
        """
        if self.error is None:
            content = self.content
            if isinstance(content, str):
                text = content
            else:
                text = str(content) if type(content) is int else json_text(content)
            if not self.remaining:
                return text
            return f"{text}\n[limits left: {json_text(self.remaining)}]"
        shown: dict[str, JsonValue] = {
            "status": self.status,
            "error": self.error.model_dump(exclude_defaults=True),
        }
        if self.content is not None:
            shown["content"] = self.content
        if self.remaining:
            shown["remaining"] = dict(self.remaining)
        return json_text(shown)


class Message(_Record):
    """One turn of a conversation with a model."""

    role: Role
    content: WholeText = ""
    id: Id | None = None
    """The caller's name for it; providers do not see it."""

    tool_calls: tuple[ToolCall, ...] = ()
    """Calls that an assistant asks for."""

    call_id: Id | None = None
    """The call that a tool message answers."""

    failed: bool = False
    """True if the answered call failed; its error is in `content`."""

    parts: tuple[Part, ...] = Field(default=(), repr=False)
    """Pictures and further texts, of a person or a tool."""

    @model_validator(mode="after")
    def _fits_its_role(self) -> Message:
        if self.tool_calls and self.role is not Role.ASSISTANT:
            raise ValueError("only an assistant asks for tool calls")
        if (self.role is Role.TOOL) is not (self.call_id is not None):
            raise ValueError("a tool message, and no other, names its call")
        if self.failed and (self.role is not Role.TOOL or not self.content):
            raise ValueError("only a tool message fails, and it says why")
        if self.parts and self.role not in (Role.USER, Role.TOOL):
            raise ValueError("only a person and a tool show pictures")
        return self

    @classmethod
    def system(cls, content: str) -> Message:
        """Return a message with instructions for the model."""
        return cls(role=Role.SYSTEM, content=content)

    @classmethod
    def user(cls, content: str, parts: Sequence[Part] = ()) -> Message:
        """Return what a person says and shows."""
        return cls(role=Role.USER, content=content, parts=tuple(parts))

    @classmethod
    def assistant(
        cls, content: str = "", tool_calls: Sequence[ToolCall] = ()
    ) -> Message:
        """Return what the model says and asks for."""
        return cls(role=Role.ASSISTANT, content=content, tool_calls=tuple(tool_calls))

    @classmethod
    def tool(cls, result: ToolResult) -> Message:
        """Return what came of a call, its error included."""
        return cls(
            role=Role.TOOL,
            content=result.to_text(),
            call_id=result.call_id,
            failed=not result.ok,
            parts=result.parts,
        )

    def to_openai_format(self) -> dict[str, Any]:
        """Return a message of Chat Completions.

        A tool's answer is text there: a picture in it is named and not sent.
        """
        message: dict[str, Any] = {"role": self.role.value, "content": self.content}
        if self.parts:
            shown = [part.as_text() for part in self.parts] if self.call_id else []
            message["content"] = [
                *self._texts(),
                *(part.to_openai_format() for part in shown or self.parts),
            ]
        if self.tool_calls:
            message["content"] = self.content or None
            message["tool_calls"] = [
                call.to_openai_format() for call in self.tool_calls
            ]
        if self.call_id is not None:
            message["tool_call_id"] = self.call_id
        return message

    def to_anthropic_format(self) -> dict[str, Any]:
        """Return a message of the Messages API.

        A tool message becomes a user turn with one `tool_result` block; the API
        joins those that follow each other. The system text that opens a
        conversation belongs in the request's `system` parameter; as a message,
        only some models accept it, and only later on.
        """
        if self.role is Role.TOOL:
            block: dict[str, Any] = {
                "type": "tool_result",
                "tool_use_id": self.call_id,
                "content": self.content,
            }
            if self.parts:
                block["content"] = self._blocks()
            if self.failed:
                block["is_error"] = True
            return {"role": "user", "content": [block]}
        if not self.tool_calls and not self.parts:
            return {"role": self.role.value, "content": self.content}
        blocks = self._blocks()
        blocks += [call.to_anthropic_format() for call in self.tool_calls]
        return {"role": self.role.value, "content": blocks}

    def _texts(self) -> list[dict[str, Any]]:
        # An empty text is refused.
        return [{"type": "text", "text": self.content}] if self.content else []

    def _blocks(self) -> list[dict[str, Any]]:
        return [*self._texts(), *(part.to_anthropic_format() for part in self.parts)]
