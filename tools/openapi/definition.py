"""Operations of an OpenAPI document, as they are approved."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from ..external.definition import ExternalDefinition
from ..external.pins import Pins

Method = Literal["get", "put", "post", "delete", "options", "head", "patch", "trace"]
Location = Literal["path", "query", "header", "cookie"]
Style = Literal["simple", "form", "spaceDelimited", "pipeDelimited", "deepObject"]

FORM = "application/x-www-form-urlencoded"
"""The media type of forms."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class OperationParameter(_Part):
    """An argument of the tool, and its place in a request."""

    argument: str
    """Its name in the tool's schema."""

    name: str
    """Its name in a request."""

    location: Annotated[Location, Field(alias="in")]
    style: Style
    explode: bool
    is_json: bool = False
    """True if the value is written as JSON."""


class FormField(_Part):
    """A field of a form that its document gives a style."""

    name: str
    style: Style
    explode: bool


class OperationBody(_Part):
    """The body of a request, which is the argument `body`."""

    media_type: str
    fields: tuple[FormField, ...] = Field((), exclude_if=lambda fields: not fields)
    """Fields of a form with a style. Objects in others are written as JSON."""


class SecurityScheme(_Part):
    """A secret's place in a request."""

    scheme: str
    """The name of the scheme in the document."""

    kind: Literal["key", "basic", "bearer"]
    location: Annotated[Location, Field(alias="in")]
    name: str
    """The header, query parameter or cookie."""


class OpenAPIDefinition(ExternalDefinition):
    """An operation as its document defines it. With any change it is another tool."""

    method: Method
    path: str
    """The template, below the server's URL."""

    parameters: tuple[OperationParameter, ...] = ()
    body: OperationBody | None = None
    security: tuple[tuple[SecurityScheme, ...], ...] = ()
    """Sets of schemes, one of which a request has to fulfil; empty: none is needed."""

    output_schema: dict[str, JsonValue] | None = Field(
        None, alias="outputSchema", exclude_if=lambda schema: schema is None
    )
    """The JSON Schema of its usual answer, for stubs alone; None: none can be read."""


class OpenAPIPins(Pins[OpenAPIDefinition]):
    """Approved operations, by the name of their API; immutable.

    Args:
        servers: Definitions by API.
    """

    kind = OpenAPIDefinition
