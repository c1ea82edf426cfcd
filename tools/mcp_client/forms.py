"""Forms of MCP servers: questions of plain values, as a user may see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from toolcell.core import ConfigError, ToolExecutionError
from toolcell.core.text.printable import escaped
from toolcell.guard.spi import is_secret_name

from ..definition.json_schema import build_validator
from ..definition.questions import UserQuestion
from ..external.definition import (
    MAX_DESCRIPTION_CHARACTERS,
    ExternalDefinition,
    checked_definition,
    marked,
    model_schema,
)

if TYPE_CHECKING:
    from mcp.types import ElicitRequestParams

MAX_FIELDS = 32
"""Fields of a form. When it is exceeded the form is refused."""


class _FormPart(BaseModel):
    """A part of a form; what is not named here is left out."""

    model_config = ConfigDict(
        extra="ignore", strict=True, alias_generator=to_camel, populate_by_name=False
    )


class _Choice(_FormPart):
    const: str
    title: str | None = None


class _Choices(_FormPart):
    type: Literal["string"] = "string"
    enum: list[str] | None = None
    any_of: list[_Choice] | None = None


class _Field(_FormPart):
    title: str | None = None
    description: str | None = None


class _Text(_Field):
    type: Literal["string"]
    default: str | None = None
    format: Literal["date", "date-time", "email", "uri"] | None = None
    min_length: int | None = None
    max_length: int | None = None
    enum: list[str] | None = None
    enum_names: list[str] | None = None
    one_of: list[_Choice] | None = None


class _Number(_Field):
    type: Literal["number", "integer"]
    default: int | float | None = None
    minimum: int | float | None = None
    maximum: int | float | None = None


class _YesOrNo(_Field):
    type: Literal["boolean"]
    default: bool | None = None


class _Several(_Field):
    type: Literal["array"]
    items: _Choices
    default: list[str] | None = None
    min_items: int | None = None
    max_items: int | None = None


_fields: TypeAdapter[Any] = TypeAdapter(
    dict[
        str,
        Annotated[_Text | _Number | _YesOrNo | _Several, Field(discriminator="type")],
    ]
)


def question_of(server: str, params: ElicitRequestParams) -> UserQuestion:
    """Return a question as the user may see it.

    Raises:
        ToolExecutionError: It is no plain form, or asks for a secret.
    """
    from mcp import types as mcp

    if not isinstance(params, mcp.ElicitRequestFormParams):
        raise refused_question(server, "no URL that a server names is opened")
    message = escaped(params.message.strip(), MAX_DESCRIPTION_CHARACTERS)
    return UserQuestion(
        server=server,
        message=marked(f"MCP server {server}", message),
        fields=_form(server, params.requested_schema),
    )


def refused_question(server: str, reason: str) -> ToolExecutionError:
    """Return the error of a question that no user is asked."""
    return ToolExecutionError(
        f"the MCP server {server} may not ask that: {reason}",
        hint="call the tool with all that it needs, or use another one",
    )


def _form(server: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a form with what forms have, and no more."""
    fields, required = _plain(server, schema.get("properties")), schema.get("required")
    form: dict[str, Any] = {
        "type": "object",
        "properties": fields,
        "required": [
            name for name in fields if isinstance(required, list) and name in required
        ],
        "additionalProperties": False,
    }
    try:
        checked_definition(
            ExternalDefinition,
            {"name": server, "inputSchema": form},
            ("input_schema",),
        )
        build_validator("the form", form)
    except ConfigError as error:
        raise refused_question(server, error.message) from None
    shown: dict[str, Any] = model_schema(form)
    return shown


def _plain(server: str, given: Any) -> dict[str, Any]:
    """Return the fields with the keywords that the protocol has for them."""
    if not isinstance(given, dict) or not 0 < len(given) <= MAX_FIELDS:
        raise refused_question(server, f"a form has 1 to {MAX_FIELDS} fields")
    try:
        fields: dict[str, Any] = _fields.dump_python(
            _fields.validate_python(given), by_alias=True, exclude_none=True
        )
    except ValidationError:
        raise refused_question(
            server, "a field is a text, a number, a choice or yes or no"
        ) from None
    if any(is_secret_name(each) for each in fields) or any(
        is_secret_name(each.get("title", "")) for each in fields.values()
    ):
        raise refused_question(server, "a form may not ask for a secret")
    return fields
