"""Gives each request to a server its token, and another one when that is refused."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Protocol

import anyio

from toolcell.core import ConfigError

from .kept_tokens import KeptTokens, Tokens
from .login import (
    LoginError,
    OAuthLogin,
    asking,
    client_tokens,
    given_tokens,
    metadata_of,
)

if TYPE_CHECKING:
    import httpx2

_LOGIN_FAILED = -32_090
_MARK = secrets.token_hex(16)
"""Marks the errors of calls that were not sent. No server can know it."""

_REASON = "toolcell.login"
_UNAUTHORIZED = 401
_TURN_SECONDS = 60.0


class _TokenSource(Protocol):
    async def token(self, refused: str | None) -> str:
        """Return a token that is not the refused one. Raises LoginError."""


class _ClientSource:
    """Tokens for the client's own credentials, which only this process has."""

    def __init__(self, login: OAuthLogin, resource: str) -> None:
        self._login, self._resource = login, resource
        self._token: str | None = None
        self._logging_in = anyio.Lock()

    async def token(self, refused: str | None) -> str:
        if self._token is not None and self._token != refused:
            return self._token
        async with self._logging_in:
            if self._token is None or self._token == refused:
                given = await client_tokens(self._login, self._resource)
                self._token = given.access
            return self._token


class _PersonSource:
    """Tokens of a person's login, which all processes with the file share."""

    def __init__(self, login: OAuthLogin, resource: str) -> None:
        self._login, self._resource = login, resource

    async def token(self, refused: str | None) -> str:
        try:
            kept, tokens = self._read(self._login.places)
            if tokens.access != refused:
                return tokens.access
            with anyio.fail_after(_TURN_SECONDS):
                async with kept.locked():
                    return await self._renewed(kept, refused)
        except ConfigError as error:
            raise LoginError(error.message, error.hint) from error
        except TimeoutError:
            raise LoginError("its renewal takes too long") from None

    def _read(self, places: tuple[KeptTokens, ...]) -> tuple[KeptTokens, Tokens]:
        for kept in places:
            tokens = kept.read(purpose_of(self._login, self._resource, kept))
            if tokens is not None:
                return kept, tokens
        raise LoginError("no one is logged in", places[0].hint)

    async def _renewed(self, kept: KeptTokens, refused: str) -> str:
        """Return the token of another process, or renew it for all of them."""
        _, tokens = self._read((kept,))
        if tokens.access != refused:
            return tokens.access
        if tokens.refresh is None:
            raise LoginError("the login has ended", kept.hint)
        # An issuer takes a token for this once: its answer has to be kept, even if
        # the call that asked for it is over.
        purpose = purpose_of(self._login, self._resource, kept)
        with anyio.CancelScope(shield=True):
            # Without room for the answer the issuer is not asked.
            kept.write(tokens, purpose)
            given = await self._refreshed(tokens.refresh, kept.hint)
            kept.write(given, purpose)
        return given.access

    async def _refreshed(self, refresh: str, again: str) -> Tokens:
        fields = {
            "grant_type": "refresh_token",
            "refresh_token": refresh,
            "resource": self._resource,
        }
        async with asking(self._login.issuer) as client:
            metadata = await metadata_of(client, self._login.issuer)
            given = await given_tokens(
                client, self._login, metadata, fields, again=again
            )
        return Tokens(access=given.access, refresh=given.refresh or refresh)


def purpose_of(login: OAuthLogin, resource: str, kept: KeptTokens) -> str:
    """Return the text that binds the tokens of a place to what they are for."""
    agent = [] if kept.agent_id is None else [kept.agent_id]
    return json.dumps([login.issuer, login.client_id, resource, *agent])


def login_auth(
    login: OAuthLogin, resource: str, note: Callable[[LoginError | None], None]
) -> httpx2.Auth:
    """Return the object that gives each request of a client its token.

    Args:
        login: Gets the tokens.
        resource: The URL that they are for (RFC 8707).
        note: Called with the error of a login that failed, and with None after the
            server took a token.
    """
    import httpx2

    source: _TokenSource
    if login.kept is None:
        source = _ClientSource(login, resource)
    else:
        source = _PersonSource(login, resource)

    class Auth(httpx2.Auth):
        async def async_auth_flow(
            self, request: httpx2.Request
        ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
            used = None
            for _ in range(2):
                try:
                    used = await source.token(used)
                except LoginError as error:
                    note(error)
                    request.extensions[_REASON] = error
                    yield request
                    return
                request.headers["Authorization"] = f"Bearer {used}"
                response = yield request
                if response.status_code != _UNAUTHORIZED:
                    note(None)
                    return

    return Auth()


def answer_without_token(request: httpx2.Request) -> httpx2.Response | None:
    """Return the answer to a request that no token was found for, and that is not
    sent; None: it has its token.

    It is an error of JSON-RPC, so that the connection and other calls go on.
    """
    import httpx2

    reason: LoginError | None = request.extensions.get(_REASON)
    if reason is None:
        return None
    error = {
        "code": _LOGIN_FAILED,
        "message": f"its login failed: {reason}",
        "data": {_MARK: reason.hint},
    }
    body = {"jsonrpc": "2.0", "id": None, "error": error}
    return httpx2.Response(_UNAUTHORIZED, json=body, request=request)


def failed_login(message: str, data: object) -> LoginError | None:
    """Return the login for want of which a call was not sent; None: it was.

    Args:
        message: The message of the error that the call ended with.
        data: The data of that error.
    """
    if not isinstance(data, dict) or _MARK not in data:
        return None
    return LoginError(message, data[_MARK])
