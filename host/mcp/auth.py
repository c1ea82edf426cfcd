"""Authenticates HTTP requests: a valid token names the agent."""

from __future__ import annotations

import hashlib
import json
import logging
from importlib import import_module
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken, TokenVerifier, principal_components
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request

from toolcell.core import ConfigError

from ..config.server import ServerConfig
from ..http.tokens import TokenStore
from .caller import Caller, Context

APPROVE = "toolcell:approve"
"""The scope of tokens whose client asks a person, who may approve calls."""

_log = logging.getLogger(__name__)


class StoredTokenVerifier:
    """Verifies the tokens of `toolcell tokens`."""

    def __init__(self, store: TokenStore) -> None:
        self._store = store

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the agent and scopes of a token; None: it is not valid."""
        found = self._store.find(token)
        if found is None:
            return None
        return AccessToken(
            token=token,
            client_id=found.id,
            scopes=[APPROVE] if found.asks_person else [],
            subject=found.agent_id,
        )

    def is_valid(self, token_id: str) -> bool:
        """Return True for a token that is neither expired nor revoked."""
        return self._store.is_valid(token_id)


class FailClosedVerifier:
    """Accepts tokens that name an agent, and none if the verifier itself fails.

    Args:
        verifier: Verifies tokens; its answer names the agent as `subject`.
    """

    def __init__(self, verifier: TokenVerifier) -> None:
        self._verifier = verifier

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the verifier's answer without the token; None: it is not valid."""
        try:
            found = await self._verifier.verify_token(token)
        except Exception as error:  # noqa: BLE001 - on any failure access is refused
            # Its text may hold the token.
            _log.error("a token could not be verified: %s", type(error).__name__)
            return None
        if found is None or not found.subject:
            return None
        return found.model_copy(update={"token": ""})

    def is_valid(self, client_id: str) -> bool:
        """Return False for a client whose token is known to have ended."""
        if isinstance(self._verifier, StoredTokenVerifier):
            return self._verifier.is_valid(client_id)
        return True


def load_verifier(path: str) -> TokenVerifier:
    """Return the verifier that a configuration names as `package.module:name`.

    Raises:
        ConfigError: It cannot be imported, or has no `verify_token`.
    """
    module, _, name = path.partition(":")
    try:
        found: Any = getattr(import_module(module), name)
        verifier = found() if isinstance(found, type) else found
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"auth.verifier: {path} cannot be used: {error}",
            hint="write it as package.module:name, of a module that can be imported",
        ) from error
    if not callable(getattr(verifier, "verify_token", None)):
        raise ConfigError(
            f"auth.verifier: {path} has no verify_token",
            hint="name an object or class with `async def verify_token(self, token)`",
        )
    return verifier  # type: ignore[no-any-return]


def caller_of(ctx: Context, settings: ServerConfig) -> Caller:
    """Return the caller of a request over HTTP."""
    request = ctx.request
    assert isinstance(request, Request)
    user = request.scope.get("user")
    if isinstance(user, AuthenticatedUser):
        token = user.access_token
        agent_id = token.subject
        name = f"token {token.client_id}"
        approver = name if APPROVE in token.scopes else None
        principal = json.dumps(principal_components(token))
    else:
        agent_id = settings.agent_id
        name = "unauthenticated client"
        approver = name if settings.elicitation else None
        principal = "unauthenticated"
    assert agent_id is not None
    session = None
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        # The library binds it to its principal; in other versions it is any text.
        session = request.headers.get(MCP_SESSION_ID_HEADER)
    run_id = f"session-{session}" if session else f"client-{_digest(principal)}"
    return Caller(agent_id=agent_id, run_id=run_id, name=name, approver=approver)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
