"""Speaks to an MCP server over streamable HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from toolcell.core import ConfigError
from toolcell.core.addresses import is_loopback_or_https

from ..external.login import LoginError, OAuthLogin
from ..external.login_auth import login_auth
from .http_bodies import bounded_transport
from .kept_results import KeptResults

if TYPE_CHECKING:
    import httpx2
    from mcp.client._transport import TransportStreams

IDLE_SECONDS = 300.0
"""Seconds without a byte on an open answer. When it is reached the answer ends."""

_CONNECT_SECONDS = 30.0


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

    login: OAuthLogin | None = None
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

    @property
    def by_person(self) -> bool:
        """True if its tokens are of people's logins, which agents have of their own."""
        return self.login is not None and self.login.kept is not None

    def for_agent(self, agent_id: str | None) -> MCPEndpoint:
        """Return the server as an agent reaches it."""
        if self.login is None:
            return self
        return replace(self, login=replace(self.login, agent_id=agent_id))


class LastErrorStatus:
    """The last HTTP status that was an error, and failed login, for messages."""

    status: int | None = None
    login: LoginError | None = None
    """The last login, if it failed."""

    async def note(self, response: httpx2.Response) -> None:
        if response.status_code >= 400:
            self.status = response.status_code

    def note_login(self, failure: LoginError | None) -> None:
        self.login = failure


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
            auth=None
            if server.login is None
            else login_auth(server.login, server.url, last_error.note_login),
            event_hooks={"response": [last_error.note]},
            trust_env=False,
        ) as client,
        streamable_http_client(
            server.url, http_client=client, max_sse_event_size=max_bytes
        ) as streams,
    ):
        yield streams
