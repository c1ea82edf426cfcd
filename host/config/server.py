"""The tables `[server]` and `[auth]` of the configuration."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from .base import IMPORT_PATH, Count, Model, Seconds

API = Literal["mcp", "rest", "e2b"]
"""An API of a host over HTTP: its tools by MCP or REST, or its sandboxes by E2B's."""

_NonEmptyText = Annotated[str, Field(min_length=1, max_length=256)]
_Url = Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")]


class ServerConfig(Model):
    """The servers of `toolcell serve`."""

    apis: Annotated[tuple[API, ...], Field(min_length=1)] = ("mcp",)
    """The APIs of `toolcell serve --http`: `mcp` at `/mcp`, `rest` at `/v1`, and `e2b`,
    whose requests name a sandbox or have another path."""

    agent_id: _NonEmptyText | None = None
    """The agent that calls over standard input and output. None: name one with
    `--agent`."""

    code_mode: bool = False
    """If true, MCP clients are shown `search_tools`, `describe_tools` and `run_code` in
    place of the list of tools, whose programs call the others. A policy allows the
    three by `@code_mode`."""

    direct_tools: tuple[_NonEmptyText, ...] = ()
    """Tools that `code_mode` shows beside the three, by name; `*` stands for any
    text."""

    elicitation: bool = True
    """If true, a client on standard input and output may ask its user to approve a
    call. Over HTTP the client's token decides, see `toolcell tokens create`."""

    approval_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """Seconds that a call waits for a person whom its client cannot ask. When it is
    reached the call is refused as pending, with the id of the request; the same call
    in the same session finds a later answer."""

    allowed_hosts: tuple[_NonEmptyText, ...] = ()
    """Values of the header `Host` that are accepted beside those of the loopback
    address, such as `tools.example.com`. Others are answered 403."""

    allowed_origins: tuple[_NonEmptyText, ...] = ()
    """Values of the header `Origin` that are accepted beside those of the loopback
    address, such as `https://example.com`. Others are answered 403."""

    max_clients: Count = 256
    """Sessions over HTTP at once. When it is reached new clients are answered 503."""

    max_connections: Count = 1_024
    """Open connections over HTTP. When it is reached the one that has waited longest
    for a request is closed; where all have one, further requests are answered 503."""

    max_requests: Count = 256
    """Requests at once, of all clients; over HTTP one agent has at most as many as are
    left to the others. When it is reached further requests are answered 503, and
    further calls as busy."""

    max_body_bytes: Annotated[int, Field(ge=1_024, le=1_073_741_824)] = 4_194_304
    """Bytes of one request. When it is reached the request is answered 413, and over
    standard input as too large."""

    max_body_values: Count = 10_000
    """Values of one request: texts, numbers, lists, objects; a number of 4,000 digits
    counts as 1,600. When it is reached the request is answered 413, unread, and over
    standard input as too large."""

    max_result_bytes: Annotated[int, Field(ge=1_024, le=1_073_741_824)] = 8_388_608
    """Bytes of one result over MCP, artifacts included. When it is reached the client
    gets an error that says that the call was made; clients of the TypeScript SDK would
    lose their connection at 10 MiB."""

    max_bytes_per_second: Annotated[int, Field(ge=65_536)] = 16_777_216
    """Bytes that one agent may send over HTTP on average; each request counts 16,384
    beside its body. When it is reached the agent's further requests are answered
    429."""

    idle_seconds: Seconds = 1_800.0
    """Seconds that a session over HTTP may be without a request. When it is reached
    the session ends, with its variables and files."""

    drain_seconds: Annotated[float, Field(ge=0, le=3_600)] = 10.0
    """Seconds that a stopping server waits for calls that run. When it is reached
    they are cancelled."""


class AuthConfig(Model):
    """Authentication over HTTP: clients need a token of `toolcell tokens create`,
    unless this table says otherwise."""

    verifier: Annotated[str, Field(pattern=IMPORT_PATH)] | None = None
    """Your own verifier of tokens as `package.module:name`: an object with mcp's
    `verify_token`, or a class of such objects. Its answer names the agent in
    `subject` and the audience in `resource`."""

    issuer: _Url | None = None
    """The OAuth server that issues the tokens; clients learn it from the server's
    metadata. Needed with `verifier`."""

    resource: _Url | None = None
    """The public URL of this server's endpoint. Tokens issued for another one are
    refused. Needed with `verifier`."""

    scopes: tuple[_NonEmptyText, ...] = ()
    """Scopes that a token of `verifier` must have. Without them: 403."""

    unauthenticated: bool = False
    """If true, every client that reaches the loopback address acts as
    `server.agent_id`, without a token; in the profile `development` only."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.verifier is None:
            if self.issuer or self.resource or self.scopes:
                raise ValueError("issuer, resource and scopes belong to a verifier")
        elif self.unauthenticated:
            raise ValueError("verifier and unauthenticated exclude each other")
        elif self.issuer is None or self.resource is None:
            raise ValueError("a verifier needs issuer and resource")
        return self
