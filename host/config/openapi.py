"""The tables `[tools.openapi.NAME]` of the configuration."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, IPvAnyNetwork, model_validator

from toolcell.core.addresses import is_loopback_or_https

from .base import Count, FilePath, Model, Seconds
from .mcp_servers import MCPName
from .secrets import SecretReference

_URL = r"^https?://[^\s/?#@]+(/[^\s#]*)?$"
_SERVER = r"^https?://[^\s/?#@]+(/[^\s?#]*)?$"


class OpenAPIConfig(Model):
    """An HTTP API whose operations are offered as tools, once they are approved with
    `toolcell tools pin`."""

    document: FilePath | None = None
    """The OpenAPI document: a file in JSON or YAML."""

    url: Annotated[str, Field(pattern=_URL)] | None = None
    """The URL of the document, if it is no file. It is fetched by `toolcell tools
    pin`, and by a host before the first call and once an hour."""

    server: Annotated[str, Field(pattern=_SERVER)]
    """The URL that requests go to, such as `https://api.example.com/v1`. Servers that
    the document names do not count, and redirects are not followed."""

    secrets: dict[Annotated[str, Field(min_length=1)], SecretReference] = Field(
        default_factory=dict
    )
    """Secrets by the names of the document's security schemes:
    `{ api_key = "env:PETS_KEY" }`. One for `basic` is `user:password`."""

    operations: tuple[Annotated[str, Field(min_length=1)], ...] = ("*",)
    """The operations to offer, by name; `*` stands for any text. `toolcell tools pin`
    refuses one that matches none."""

    prefix: MCPName | None = None
    """Before the names of its tools, as `prefix__operation`. None: the name of the
    table."""

    networks: tuple[IPvAnyNetwork, ...] = ()
    """Addresses that may be reached although they are not public, such as
    `10.1.0.0/16`."""

    idempotent: tuple[str, ...] = ()
    """Operations that may be called again when the outcome of a call is not known."""

    timeout_seconds: Seconds = 30.0
    """Seconds of a call. When it is reached the connection is cut, and the call ends as
    `timeout`."""

    max_bytes: Count = 1_000_000
    """Bytes of an answer. When it is reached the call fails."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.document is None) == (self.url is None):
            raise ValueError("write either a document or a url")
        if self.secrets and not is_loopback_or_https(self.server):
            raise ValueError("a secret is sent over https, or to a loopback address")
        return self
