"""Who is behind an HTTP request: a token's agent, or nobody."""

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
from ..mcp_server.caller import Caller, Context
from .tokens import TokenStore

APPROVE = "toolcell:approve"
"""The scope of tokens whose client asks a person, whose word counts as approval."""

_log = logging.getLogger(__name__)


class StoredTokenVerifier:
    """Verifies the tokens of `toolcell tokens`."""

    def __init__(self, store: TokenStore) -> None:
        self._store = store

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return what a token stands for; None: nothing."""
        found = self._store.find(token)
        if found is None:
            return None
        return AccessToken(
            token=token,
            client_id=found.id,
            scopes=[APPROVE] if found.asks_person else [],
            subject=found.agent_id,
        )


class FailClosedVerifier:
    """Lets in who has a token of an agent, and nobody if the verifier fails.

    Args:
        verifier: Who knows tokens. What it returns names the agent as `subject`.
    """

    def __init__(self, verifier: TokenVerifier) -> None:
        self._verifier = verifier

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return what a token stands for, without the token; None: nothing."""
        try:
            found = await self._verifier.verify_token(token)
        except Exception as error:  # noqa: BLE001 - whatever it raises, nobody comes in
            # Its text may hold the token.
            _log.error("a token could not be verified: %s", type(error).__name__)
            return None
        if found is None or not found.subject:
            return None
        return found.model_copy(update={"token": ""})


def load_verifier(path: str) -> TokenVerifier:
    """Return the verifier that a configuration names as `package.module:name`.

    Raises:
        ConfigError: It cannot be imported, or verifies nothing.
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
    """Return who makes a request over HTTP."""
    request = ctx.request
    assert isinstance(request, Request)
    user = request.scope.get("user")
    if isinstance(user, AuthenticatedUser):
        token = user.access_token
        agent_id = token.subject
        approver = f"token {token.client_id}" if APPROVE in token.scopes else None
        principal = json.dumps(principal_components(token))
    else:
        agent_id = settings.agent_id
        approver = "unauthenticated client" if settings.elicitation else None
        principal = "unauthenticated"
    assert agent_id is not None
    session = None
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        # Bound to its principal by the library; elsewhere it is any text.
        session = request.headers.get(MCP_SESSION_ID_HEADER)
    run_id = f"session-{session}" if session else f"client-{_digest(principal)}"
    return Caller(agent_id=agent_id, run_id=run_id, approver=approver)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
