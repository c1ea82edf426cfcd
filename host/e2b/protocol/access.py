"""Decides who a request comes from, and whether it may use a sandbox."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from time import time
from typing import Literal

from ...http.tokens import Token, TokenStore
from .errors import APIError

Operation = Literal["read", "write"]
KEY_HEADER = "x-api-key"
ACCESS_HEADERS = ("x-access-token", "e2b-traffic-access-token")


def is_for_control(headers: Mapping[str, str]) -> bool:
    """Return True for a request with the key of an agent, and of no sandbox."""
    return KEY_HEADER in headers and not any(
        header in headers for header in ACCESS_HEADERS
    )


def named_sandbox(headers: Mapping[str, str]) -> str | None:
    """Return the id that an access token begins with; nothing is checked yet."""
    for name in ACCESS_HEADERS:
        if name in headers:
            return headers[name].partition(".")[0]
    return None


def named_user(headers: Mapping[str, str]) -> str:
    """Return the user that the header `Authorization` names, or an empty text.

    Raises:
        APIError: 401: it cannot be read.
    """
    scheme, _, text = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return b64decode(text, validate=True).decode().partition(":")[0]
    except ValueError:
        raise APIError(401, "the header Authorization cannot be read") from None


def check_user(name: str | None, known: str) -> None:
    """Raise APIError 401 if a request names another user than the only one."""
    if name not in (None, "", known):
        raise APIError(401, f"there is no user but {known!r}")


class Access:
    """Tokens of agents, and the access tokens of sandboxes.

    The access token of a sandbox is made from its id and a key of this server. So a
    wrong one is refused before anybody looks for the sandbox, and the answer does not
    tell whether there is one.

    Args:
        tokens: The tokens of agents.
        clock: Returns seconds since 1970 (UTC).
    """

    def __init__(
        self, tokens: TokenStore, *, clock: Callable[[], float] = time
    ) -> None:
        self._tokens = tokens
        self._clock = clock
        self._key = secrets.token_bytes(32)

    def token(self, headers: Mapping[str, str]) -> Token:
        """Return the token of a request to the control plane.

        Raises:
            APIError: 401: there is none, or it is not valid.
        """
        found = self._tokens.find(headers.get(KEY_HEADER, ""))
        if found is None:
            raise APIError(401, "the API key is not valid")
        return found

    def is_valid(self, token: Token) -> bool:
        """Return True while a token is neither expired nor revoked."""
        return self._tokens.is_valid(token.id)

    def access_token(self, sandbox_id: str) -> str:
        """Return the access token of a sandbox, which begins with its id."""
        proof = hmac.new(self._key, sandbox_id.encode(), "sha256").hexdigest()
        return f"{sandbox_id}.{proof}"

    def check(self, headers: Mapping[str, str], sandbox_id: str) -> None:
        """Check the access token of a request to a sandbox.

        Raises:
            APIError: 401: it has none, or a wrong one.
        """
        known = self.access_token(sandbox_id)
        given = [headers[name] for name in ACCESS_HEADERS if name in headers]
        if not given or not all(_same(each, known) for each in given):
            raise APIError(401, "the access token of the sandbox is not valid")

    def check_signature(
        self, query: Mapping[str, str], operation: Operation, sandbox_id: str
    ) -> None:
        """Check the signature of a URL that leads to one file.

        Raises:
            APIError: 401: it is forged, for another file, user or operation, or it
                has expired.
        """
        if not self.is_signed(query, operation, sandbox_id):
            raise APIError(401, "the signature is not valid")
        expiration = query.get("signature_expiration", "")
        if expiration and not self._clock() < _seconds(expiration):
            raise APIError(401, "signature is already expired")

    def is_signed(
        self, query: Mapping[str, str], operation: Operation, sandbox_id: str
    ) -> bool:
        """Return True if the URL of a file was signed for a sandbox, at any time."""
        parts = [
            query.get("path", ""),
            operation,
            query.get("username", ""),
            self.access_token(sandbox_id),
        ]
        if expiration := query.get("signature_expiration", ""):
            parts.append(expiration)
        digest = hashlib.sha256(":".join(parts).encode()).digest()
        known = f"v1_{b64encode(digest).rstrip(b'=').decode()}"
        return _same(query["signature"], known)


def _same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), known.encode())


def _seconds(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0
