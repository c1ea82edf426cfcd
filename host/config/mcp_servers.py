"""The tables `[tools.mcp.NAME]` of the configuration."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from toolcell.core.addresses import is_loopback_or_https

from .base import FilePath, Model, Seconds
from .secrets import SecretReference

MCPName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9]+([_-][A-Za-z0-9]+)*$", max_length=32)
]
_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_Header = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")]
_Argument = Annotated[str, Field(pattern=r"^[^\x00]*$")]


class MCPServerConfig(Model):
    """An MCP server whose tools are offered, once they are approved with
    `toolcell tools pin`. It is a program that is started, or a URL."""

    command: Annotated[_Argument, Field(min_length=1)] | None = None
    """The program: a path, or a name that is looked for in PATH of `env`. No shell is
    involved. It runs unconfined."""

    args: tuple[_Argument, ...] = ()
    """Its arguments."""

    env: dict[_Variable, _Argument] = Field(default_factory=dict)
    """Its environment, beside LANG and a PATH of the system's folders; nothing of the
    host's own."""

    secret_env: dict[_Variable, SecretReference] = Field(default_factory=dict)
    """More of its environment, from secrets: `{ API_KEY = "env:MY_KEY" }`."""

    folder: FilePath | None = None
    """The folder that it runs in. None: the host's."""

    url: (
        Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+([/?][^\s#]*)?$")] | None
    ) = None
    """The URL of a server over streamable HTTP."""

    bearer: SecretReference | None = None
    """A secret that is sent as `Authorization: Bearer ...`."""

    headers: dict[_Header, SecretReference] = Field(default_factory=dict)
    """More headers, from secrets."""

    prefix: MCPName | None = None
    """Before the names of its tools, as `prefix__tool`. None: the name of the table."""

    idempotent: tuple[str, ...] = ()
    """Tools, by the server's names, that may be called again when the outcome of a
    call is not known."""

    timeout_seconds: Seconds = 60.0
    """Seconds of a call, the start of the server included. When it is reached the
    server is asked to stop, and the call ends as `timeout`."""

    startup_seconds: Seconds = 30.0
    """Seconds that the server has to start and to tell its tools. When it is reached
    the calls that wait for it fail."""

    max_message_bytes: Annotated[int, Field(ge=1_024, le=1_073_741_824)] = 4_194_304
    """Bytes of one message of the server. When it is reached the call fails, and a
    program is ended with its connection."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("write either a command or a url")
        of_command = self.args or self.env or self.secret_env or self.folder
        if self.url is not None and of_command:
            raise ValueError("args, env, secret_env and folder belong to a command")
        if self.command is not None and self.secrets_of_url:
            raise ValueError("bearer and headers belong to a url")
        if self.secrets_of_url and not is_loopback_or_https(self.url or ""):
            raise ValueError("a secret is sent over https, or to a loopback address")
        return self

    @property
    def secrets_of_url(self) -> tuple[str, ...]:
        return (*([self.bearer] if self.bearer else []), *self.headers.values())

    @property
    def secrets(self) -> tuple[str, ...]:
        """The references of all secrets in it."""
        return (*self.secret_env.values(), *self.secrets_of_url)
