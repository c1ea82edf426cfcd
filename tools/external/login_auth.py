"""Gives each request to a server its token, and another one when that is refused."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING

import anyio

from .login import LoginError, OAuthLogin, client_token

if TYPE_CHECKING:
    import httpx2

_UNAUTHORIZED = 401


def login_auth(
    login: OAuthLogin, resource: str, note: Callable[[str | None], None]
) -> httpx2.Auth:
    """Return the object that gives each request of a client its token.

    Args:
        login: Gets the tokens.
        resource: The URL that they are for (RFC 8707).
        note: Called with the reason of a login that failed, and with None after one
            that did not.
    """
    import httpx2

    class Auth(httpx2.Auth):
        def __init__(self) -> None:
            self._token: str | None = None
            self._logging_in = anyio.Lock()

        async def async_auth_flow(
            self, request: httpx2.Request
        ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
            used = self._token or await self._another(None)
            request.headers["Authorization"] = f"Bearer {used}"
            response = yield request
            if response.status_code != _UNAUTHORIZED:
                return
            try:
                another = await self._another(used)
            except LoginError:
                # The answer of the server stands.
                return
            request.headers["Authorization"] = f"Bearer {another}"
            yield request

        async def _another(self, refused: str | None) -> str:
            async with self._logging_in:
                if self._token is None or self._token == refused:
                    self._token = await self._log_in()
                return self._token

        async def _log_in(self) -> str:
            try:
                token = await client_token(login, resource)
            except LoginError as error:
                note(str(error))
                raise
            note(None)
            return token

    return Auth()
