"""Asks an authorization server for tokens, as a client of it."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus, urlsplit

import anyio

from toolcell.core import ConfigError
from toolcell.core.addresses import is_loopback_or_https
from toolcell.core.text.json_size import count_values

from .kept_tokens import KeptTokens, Tokens

if TYPE_CHECKING:
    import httpx2

_LOGIN_SECONDS = 30.0
_MAX_BYTES, _MAX_VALUES = 65_536, 5_000
_OK = 200
_REFUSED = (400, 401)
"""The statuses of a grant that is not taken (RFC 6749, 5.2)."""
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthLogin:
    """A client of an authorization server, which gets tokens for a server there: by
    its own credentials (RFC 6749, 4.4), or because a person logged in.

    Raises:
        ConfigError: What is sent to the issuer could be read on the way, or the client
            has neither credentials nor a place for a person's tokens.
    """

    issuer: str
    """The URL of the authorization server, as its metadata has it (RFC 8414). The
    credentials are sent where that metadata says, whatever the server says."""

    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    scope: str | None = None
    """The scopes to ask for, between spaces. None: the issuer's usual ones."""

    kept: KeptTokens | None = None
    """The place of the tokens that a person's login without an agent gave; beside it
    are those of agents. None: no person is asked."""

    shared: bool = False
    """True if agents that have no login use the one without an agent."""

    agent_id: str | None = None
    """The agent that tokens are for, whose own login comes first. None: none."""

    @property
    def places(self) -> tuple[KeptTokens, ...]:
        """The places of a person's tokens; the first that has some counts."""
        if self.kept is None or self.agent_id is None:
            return () if self.kept is None else (self.kept,)
        own = self.kept.of_agent(self.agent_id)
        return (own, self.kept) if self.shared else (own,)

    def __post_init__(self) -> None:
        if not is_loopback_or_https(self.issuer):
            raise ConfigError(
                "the credentials of a login are sent over https, or to a loopback "
                "address",
                hint='write the issuer like "https://login.example.org"',
            )
        if self.client_secret is None and self.kept is None:
            raise ConfigError(
                "a login without a person needs the secret of its client",
                hint="give it a client_secret",
            )


class LoginError(Exception):
    """There is no token; the text says why.

    Args:
        reason: The text.
        hint: What to do; None: nobody knows.
    """

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.hint = hint


async def client_tokens(login: OAuthLogin, resource: str) -> Tokens:
    """Return tokens for the client's own credentials.

    Args:
        login: The client.
        resource: The URL that they are for (RFC 8707).

    Raises:
        LoginError: The issuer gives none.
    """
    fields = {"grant_type": "client_credentials", "resource": resource}
    if login.scope is not None:
        fields["scope"] = login.scope
    async with asking(login.issuer) as client:
        metadata = await metadata_of(client, login.issuer)
        return await given_tokens(client, login, metadata, fields)


@asynccontextmanager
async def asking(issuer: str) -> AsyncGenerator[httpx2.AsyncClient, None]:
    """Give a client for requests to an issuer, which end in time.

    Raises:
        LoginError: It does not answer as it should.
    """
    import httpx2

    failures = (httpx2.HTTPError, httpx2.InvalidURL, ValueError, RecursionError)
    try:
        with anyio.fail_after(_LOGIN_SECONDS):
            async with httpx2.AsyncClient(
                headers={"Accept": "application/json", "Accept-Encoding": "identity"},
                timeout=_LOGIN_SECONDS,
                trust_env=False,
            ) as client:
                yield client
    except (*failures, TimeoutError) as error:
        raise LoginError(f"{issuer} does not answer as it should") from error


async def metadata_of(client: httpx2.AsyncClient, issuer: str) -> dict[str, Any]:
    """Return the metadata of an issuer: of OAuth (RFC 8414), or of OpenID Connect.

    Raises:
        LoginError: It has none, or those of another issuer.
    """
    parts = urlsplit(issuer)
    path = parts.path.rstrip("/")
    for place in (
        f"/.well-known/oauth-authorization-server{path}",
        f"{path}/.well-known/openid-configuration",
    ):
        url = f"{parts.scheme}://{parts.netloc}{place}"
        _, metadata = await _answer(client, client.build_request("GET", url))
        named = metadata.get("issuer")
        if isinstance(named, str) and named.rstrip("/") == issuer.rstrip("/"):
            return metadata
    raise LoginError(f"{issuer} has no metadata of that issuer")


def endpoint(metadata: Mapping[str, Any], kind: str) -> str:
    """Return the URL of the metadata for `token` or `authorization`.

    Raises:
        LoginError: There is none that nobody could read on the way.
        ValueError: It is no URL.
    """
    place = metadata.get(f"{kind}_endpoint")
    is_url = isinstance(place, str) and urlsplit(place).scheme in ("http", "https")
    if not isinstance(place, str) or not is_url or not is_loopback_or_https(place):
        raise LoginError(f"{metadata['issuer']} names no {kind} endpoint over https")
    return place


async def given_tokens(
    client: httpx2.AsyncClient,
    login: OAuthLogin,
    metadata: Mapping[str, Any],
    fields: Mapping[str, str],
    *,
    again: str | None = None,
) -> Tokens:
    """Return what the issuer gives for a grant.

    Args:
        client: Asks the issuer.
        login: The client of the issuer.
        metadata: The issuer's.
        fields: The grant.
        again: What to do if the issuer no longer takes it.

    Raises:
        LoginError: It gives no token.
        ValueError: It does not answer as it should.
    """
    proof, headers = {}, {}
    if login.client_secret is None:
        proof["client_id"] = login.client_id
    else:
        # RFC 6749, 2.3.1.
        pair = f"{quote_plus(login.client_id)}:{quote_plus(login.client_secret)}"
        headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    place = endpoint(metadata, "token")
    request = client.build_request(
        "POST", place, data={**fields, **proof}, headers=headers
    )
    status, given = await _answer(client, request)
    access, refresh = (
        token if isinstance(token, str) and _TOKEN.fullmatch(token) else None
        for token in (given.get("access_token"), given.get("refresh_token"))
    )
    if access is None:
        raise LoginError(
            f"{login.issuer} gave no token (HTTP status {status})",
            again if status in _REFUSED else None,
        )
    return Tokens(access=access, refresh=refresh)


async def _answer(
    client: httpx2.AsyncClient, request: httpx2.Request
) -> tuple[int, dict[str, Any]]:
    """Return the status, and the object that is the body. Raises ValueError."""
    response = await client.send(request, stream=True)
    try:
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > _MAX_BYTES:
                raise ValueError(f"more than {_MAX_BYTES} bytes")
    finally:
        await response.aclose()
    if response.status_code != _OK:
        return response.status_code, {}
    if count_values(bytes(body), _MAX_VALUES) > _MAX_VALUES:
        raise ValueError(f"more than {_MAX_VALUES} values")
    found = json.loads(body)
    return _OK, found if isinstance(found, dict) else {}
