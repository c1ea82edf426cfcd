"""Signing in with an issuer of OpenID Connect: the code flow, with PKCE and a nonce."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import time
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx2
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from pydantic import SecretStr

from toolcell.core import InvalidInputError

from ...config.console import OIDCConfig, is_loopback_name

ANSWER_SECONDS = 10.0
"""Seconds that the issuer has for each answer. When it is reached nobody signs in."""

MAX_ANSWER_BYTES = 1_048_576
"""Bytes of one answer of the issuer. When it is reached nobody signs in."""

SIGN_IN_SECONDS = 600
"""Seconds that a person has at the issuer. When it is reached it is begun anew."""

METADATA_SECONDS = 300.0
"""Seconds that the issuer's metadata are remembered; then they are asked for again."""

CALLBACK = "/oidc/callback"
_ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA")
_LEEWAY_SECONDS = 60


@dataclass(frozen=True, slots=True)
class SignIn:
    """A sign-in that was begun: its browser has it in a cookie."""

    state: str
    nonce: str
    verifier: str
    next: str
    """The page to go on to."""

    def to_text(self) -> str:
        """Return it as text for a cookie."""
        fields = [self.state, self.nonce, self.verifier, self.next]
        return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()

    @classmethod
    def from_text(cls, text: str) -> SignIn:
        """Return what `to_text` wrote.

        Raises:
            InvalidInputError: It is no such text.
        """
        try:
            fields = json.loads(base64.urlsafe_b64decode(text.encode()))
            [*words] = [field for field in fields if isinstance(field, str)]
            return cls(*words)
        except (TypeError, ValueError):
            raise InvalidInputError(
                "this sign-in was not begun here", hint="begin it again"
            ) from None


class OIDC:
    """The issuer, as a client of it.

    Args:
        settings: The issuer, and the console's id there.
        secret: The console's secret there; None: it has none.
        origin: The address of the console.
        clock: Returns seconds since 1970 (UTC).
    """

    def __init__(
        self,
        settings: OIDCConfig,
        secret: SecretStr | None,
        origin: str,
        *,
        clock: Callable[[], float] = time,
    ) -> None:
        self.settings = settings
        self._secret = secret
        self._redirect = f"{origin}{CALLBACK}"
        self._clock = clock
        self._known: tuple[float, dict[str, Any]] = (0.0, {})

    async def begin(self, path: str) -> tuple[str, SignIn]:
        """Return the address at the issuer to send a person to, and the sign-in.

        Args:
            path: The page to go on to.

        Raises:
            InvalidInputError: The issuer does not answer as it should.
        """
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        begun = SignIn(state, nonce, verifier, path)
        digest = hashlib.sha256(begun.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self._redirect,
            "scope": "openid",
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
            "code_challenge_method": "S256",
            # A session is fresh at its begin, so the person has to be there.
            "prompt": "login",
        }
        url = _address(await self._metadata(), "authorization_endpoint")
        return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(query)}", begun

    async def finish(self, begun: SignIn, query: Mapping[str, str]) -> str:
        """Return the subject that the issuer vouches for.

        Args:
            begun: The sign-in, of the cookie of the browser.
            query: The query with which the issuer sent the browser back.

        Raises:
            InvalidInputError: The issuer does not vouch for anybody.
        """
        given = query.get("state", "").encode()
        if not hmac.compare_digest(given, begun.state.encode()):
            raise InvalidInputError(
                "this sign-in was not begun here", hint="begin it again"
            )
        issuer = query.get("iss", self.settings.issuer)
        if "code" not in query or issuer != self.settings.issuer:
            raise _refused("it sent no code")
        metadata = await self._metadata()
        fields = {
            "grant_type": "authorization_code",
            "code": query["code"],
            "redirect_uri": self._redirect,
            "code_verifier": begun.verifier,
            "client_id": self.settings.client_id,
        }
        token = await self._ask(_address(metadata, "token_endpoint"), fields)
        keys = await self._ask(_address(metadata, "jwks_uri"))
        return self._subject(token.get("id_token"), keys, begun.nonce)

    def _subject(self, token: object, keys: dict[str, Any], nonce: str) -> str:
        registry = jwt.JWTClaimsRegistry(
            now=lambda: int(self._clock()),
            leeway=_LEEWAY_SECONDS,
            iss={"essential": True, "value": self.settings.issuer},
            aud={"essential": True, "value": self.settings.client_id},
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        try:
            signed = KeySet.import_key_set({"keys": keys.get("keys", [])})
            found = jwt.decode(str(token), signed, algorithms=_ALGORITHMS)
            registry.validate(found.claims)
        except (JoseError, ValueError, TypeError, KeyError):
            raise _refused("its token does not hold") from None
        party = found.claims.get("azp", self.settings.client_id)
        if party != self.settings.client_id:
            raise _refused("its token is for another client")
        return str(found.claims["sub"])

    async def _metadata(self) -> dict[str, Any]:
        until, known = self._known
        if self._clock() < until:
            return known
        url = f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration"
        found = await self._ask(url)
        if found.get("issuer") != self.settings.issuer:
            raise _refused("its metadata is of another issuer")
        self._known = self._clock() + METADATA_SECONDS, found
        return found

    async def _ask(
        self, url: str, form: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the JSON object that the issuer answers with."""
        auth = None
        if form is not None and self._secret is not None:
            secret = self._secret.get_secret_value()
            auth = httpx2.BasicAuth(self.settings.client_id, secret)
        try:
            async with httpx2.AsyncClient(timeout=ANSWER_SECONDS, auth=auth) as http:
                method = "GET" if form is None else "POST"
                async with http.stream(method, url, data=form) as answer:
                    body = bytearray()
                    async for piece in answer.aiter_bytes():
                        body += piece
                        if len(body) > MAX_ANSWER_BYTES:
                            raise _refused("it answers too much")
            found = json.loads(body) if answer.status_code == 200 else None
        except (httpx2.HTTPError, ValueError):
            found = None
        if not isinstance(found, dict):
            raise _refused("it does not answer as it should")
        return found


def _address(metadata: Mapping[str, Any], name: str) -> str:
    """Return an address of the issuer's metadata, if it is one to be trusted."""
    url = str(metadata.get(name, ""))
    parts = urlsplit(url)
    local = parts.scheme == "http" and is_loopback_name(parts.hostname or "")
    if parts.scheme != "https" and not local:
        raise _refused(f"its {name} is not of https")
    return url


def _refused(why: str) -> InvalidInputError:
    return InvalidInputError(
        f"the issuer did not sign you in: {why}", hint="try again, or ask its operator"
    )
