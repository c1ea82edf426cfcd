"""Speaks to an MCP server over streamable HTTP."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from toolcell.core import ConfigError
from toolcell.core.addresses import is_loopback_or_https

from .http_bodies import bounded_transport
from .kept_results import KeptResults

if TYPE_CHECKING:
    import httpx2
    from mcp.client._transport import TransportStreams
    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

IDLE_SECONDS = 300.0
"""Seconds without a byte on an open answer. When it is reached the answer ends."""

_CONNECT_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPLogin:
    """Credentials with which a host gets tokens for an MCP server from an authorization
    server, as a client of it (RFC 6749, 4.4). No person is asked.

    Raises:
        ConfigError: What is sent to the issuer could be read on the way.
    """

    issuer: str
    """The URL of the authorization server, as its metadata has it (RFC 8414). The
    credentials are sent nowhere else, whatever the MCP server says."""

    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    """The scopes to ask for, between spaces. None: those that the MCP server names."""

    def __post_init__(self) -> None:
        if not is_loopback_or_https(self.issuer):
            raise ConfigError(
                "the credentials of a login are sent over https, or to a loopback "
                "address",
                hint='write the issuer like "https://login.example.org"',
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPEndpoint:
    """An MCP server that is reached by a URL.

    Redirects are followed on the same origin only. Proxies, netrc and other settings
    of the environment are not used.

    Raises:
        ConfigError: The URL is not one of `http` or `https`, or carries a password, or
            a token could be read on its way there.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with every request, such as `Authorization`."""

    login: MCPLogin | None = None
    """Gets a token for each connection. None: no token is asked for."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                "the URL of an MCP server starts with https:// or http://",
                hint='write it like "https://example.org/mcp"',
            )
        if parts.username is not None or parts.password is not None:
            raise ConfigError(
                "the URL of an MCP server carries a password",
                hint="send it in a header",
            )
        if self.login is not None and not is_loopback_or_https(self.url):
            raise ConfigError(
                "a token is sent over https, or to a loopback address",
                hint='write the URL like "https://example.org/mcp"',
            )


class LastErrorStatus:
    """The last HTTP status that was an error, and failed login, for messages."""

    status: int | None = None
    login: str | None = None
    """The reason of the last login that failed."""

    async def note(self, response: httpx2.Response) -> None:
        if response.status_code >= 400:
            self.status = response.status_code


@asynccontextmanager
async def open_endpoint(
    server: MCPEndpoint,
    max_bytes: int,
    last_error: LastErrorStatus,
    kept: KeptResults,
) -> AsyncGenerator[TransportStreams, None]:
    """Open a client of the server; its messages come and go over the streams.

    Args:
        server: The address and headers.
        max_bytes: Bytes of one message. When it is reached its call fails.
        last_error: Remembers error statuses.
        kept: Has the large results, which the messages are without.
    """
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async with (
        httpx2.AsyncClient(
            transport=bounded_transport(max_bytes, kept),
            # A packed answer could be any size once unpacked.
            headers={**server.headers, "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(_CONNECT_SECONDS, read=IDLE_SECONDS),
            auth=login_auth(server.url, server.login, last_error)
            if server.login
            else None,
            event_hooks={"response": [last_error.note]},
            trust_env=False,
        ) as client,
        streamable_http_client(
            server.url, http_client=client, max_sse_event_size=max_bytes
        ) as streams,
    ):
        yield streams


class _NoStorage:
    """Keeps no token beyond its connection."""

    async def get_tokens(self) -> None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        return None

    async def get_client_info(self) -> None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        return None


def login_auth(url: str, login: MCPLogin, last_error: LastErrorStatus) -> httpx2.Auth:
    """Return what gives each request of one connection its token.

    Args:
        url: The MCP server's.
        login: Gets the tokens.
        last_error: Remembers why it failed.
    """
    from mcp.client.auth import OAuthFlowError, OAuthTokenError
    from mcp.client.auth.extensions.client_credentials import (
        ClientCredentialsOAuthProvider,
    )

    # It logs failures with their tracebacks, and they are raised as well.
    logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL)
    places = {urlsplit(each)[:2] for each in (url, login.issuer)}

    class Provider(ClientCredentialsOAuthProvider):
        async def _perform_authorization(self) -> httpx2.Request:
            if login.scope is not None:
                self.context.client_metadata.scope = login.scope
            return await super()._perform_authorization()

        async def async_auth_flow(
            self, request: httpx2.Request
        ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
            flow = super().async_auth_flow(request)
            try:
                sent = await anext(flow)
                while True:
                    # A server says where its issuer is, and leads to no other pages.
                    is_look = sent is not request and sent.method == "GET"
                    if is_look and urlsplit(str(sent.url))[:2] not in places:
                        raise OAuthFlowError
                    response = yield sent
                    if sent is not request:
                        last_error.status = None
                    sent = await flow.asend(response)
            except StopAsyncIteration:
                return
            except OAuthTokenError:
                last_error.login = f"{login.issuer} gave no token for it"
                raise
            except OAuthFlowError:
                last_error.login = f"the server does not lead to {login.issuer}"
                raise
            finally:
                await flow.aclose()

    return Provider(
        url, _NoStorage(), login.client_id, login.client_secret, issuer=login.issuer
    )
