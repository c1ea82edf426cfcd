"""Logs in at an authorization server, with the credentials of a client of it."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus, urlsplit

import anyio

from toolcell.core import ConfigError
from toolcell.core.addresses import is_loopback_or_https
from toolcell.core.text.json_size import count_values

if TYPE_CHECKING:
    import httpx2

_LOGIN_SECONDS = 30.0
_MAX_BYTES, _MAX_VALUES = 65_536, 5_000
_OK = 200
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthLogin:
    """Credentials with which a host gets tokens for a server from an authorization
    server, as a client of it (RFC 6749, 4.4). No person is asked.

    Raises:
        ConfigError: What is sent to the issuer could be read on the way.
    """

    issuer: str
    """The URL of the authorization server, as its metadata has it (RFC 8414). The
    credentials are sent where that metadata says, whatever the server says."""

    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    """The scopes to ask for, between spaces. None: the issuer's usual ones."""

    def __post_init__(self) -> None:
        if not is_loopback_or_https(self.issuer):
            raise ConfigError(
                "the credentials of a login are sent over https, or to a loopback "
                "address",
                hint='write the issuer like "https://login.example.org"',
            )


class LoginError(Exception):
    """There is no token; the text says why."""


async def client_token(login: OAuthLogin, resource: str) -> str:
    """Return a token. Raises LoginError."""
    import httpx2

    failures = (httpx2.HTTPError, httpx2.InvalidURL, ValueError, RecursionError)
    try:
        with anyio.fail_after(_LOGIN_SECONDS):
            async with httpx2.AsyncClient(
                headers={"Accept": "application/json", "Accept-Encoding": "identity"},
                timeout=_LOGIN_SECONDS,
                trust_env=False,
            ) as client:
                return await _given_token(client, login, resource)
    except (*failures, TimeoutError) as error:
        raise LoginError(f"{login.issuer} does not answer as it should") from error


async def _given_token(
    client: httpx2.AsyncClient, login: OAuthLogin, resource: str
) -> str:
    metadata = await _metadata(client, login.issuer)
    place = metadata.get("token_endpoint")
    if not isinstance(place, str) or not is_loopback_or_https(place):
        raise LoginError(f"{login.issuer} names no place for tokens over https")
    fields = {"grant_type": "client_credentials", "resource": resource}
    if login.scope is not None:
        fields["scope"] = login.scope
    request = client.build_request("POST", place, data=fields)
    # RFC 6749, 2.3.1.
    pair = f"{quote_plus(login.client_id)}:{quote_plus(login.client_secret)}"
    request.headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    status, given = await _answer(client, request)
    token = given.get("access_token")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise LoginError(f"{login.issuer} gave no token (HTTP status {status})")
    return token


async def _metadata(client: httpx2.AsyncClient, issuer: str) -> dict[str, Any]:
    """Return the metadata of an issuer: of OAuth (RFC 8414), or of OpenID Connect."""
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
