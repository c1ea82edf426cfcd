"""A person's login at an authorization server, by a browser of this machine.

The authorization code comes back to a loopback address (RFC 8252), for which alone
this process has the verifier (RFC 7636).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import anyio
from anyio.abc import ByteStream, Listener, SocketAttribute, SocketStream
from anyio.streams.stapled import MultiListener

from toolcell.core import ToolExecutionError
from toolcell.core.event_loop import unwrapped_single_error

from .kept_tokens import KeptTokens, Tokens
from .login import (
    LoginError,
    OAuthLogin,
    asking,
    endpoint,
    given_tokens,
    metadata_of,
)
from .login_auth import purpose_of

PERSON_SECONDS = 300.0
"""Seconds that a person has to log in. When it is reached no one is logged in."""

_REQUEST_SECONDS = 10.0
_MAX_CONNECTIONS = 16
_MAX_HEAD_BYTES = 16_384
_PATH = "/callback"
_LINE = re.compile(rb"GET /callback\?([!-~]*) HTTP/1\.[01]\r\n")
_REFUSAL = re.compile(r"[a-z_]{1,64}")
_DONE = "The login came back. The terminal says whether it holds; close this page."
_ODD = "No login that was begun here comes back like this."


async def log_in(
    login: OAuthLogin,
    kept: KeptTokens,
    resource: str,
    show: Callable[[str], object],
    *,
    seconds: float = PERSON_SECONDS,
) -> None:
    """Let a person log in, and keep the tokens that the issuer gives.

    Args:
        login: The client of the issuer.
        kept: The place of the tokens.
        resource: The URL that they are for (RFC 8707).
        show: Called with the address that the person has to open.
        seconds: Seconds that the person has. When it is reached no one is logged in.

    Raises:
        ConfigError: The tokens cannot be kept.
        ToolExecutionError: The issuer gives none, or the person did not log in.
    """
    # A person is asked in vain if the tokens cannot be kept.
    kept.cipher()
    async with kept.locked():
        pass
    try:
        tokens = await _tokens(login, resource, show, seconds)
    except LoginError as error:
        raise ToolExecutionError(
            f"no one is logged in: {error}", hint=error.hint or "log in once more"
        ) from error
    async with kept.locked():
        kept.write(tokens, purpose_of(login, resource, kept))


async def _tokens(
    login: OAuthLogin, resource: str, show: Callable[[str], object], seconds: float
) -> Tokens:
    async with asking(login.issuer) as client:
        metadata = await metadata_of(client, login.issuer)
        place = endpoint(metadata, "authorization")
        endpoint(metadata, "token")
    methods = metadata.get("code_challenge_methods_supported")
    if not isinstance(methods, list) or "S256" not in methods:
        raise LoginError(
            f"{login.issuer} does not say that it takes PKCE with S256",
            "without it a code could be used by others; ask the issuer's operator",
        )
    state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    digest = hashlib.sha256(verifier.encode()).digest()
    async with await _listener() as listener:
        port = listener.extra_attributes[SocketAttribute.local_port]()
        redirect = f"http://127.0.0.1:{port}{_PATH}"
        asked = {
            "response_type": "code",
            "client_id": login.client_id,
            "redirect_uri": redirect,
            "state": state,
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
            "code_challenge_method": "S256",
            "resource": resource,
            **({} if login.scope is None else {"scope": login.scope}),
        }
        show(f"{place}{'&' if urlsplit(place).query else '?'}{urlencode(asked)}")
        answer = await _answer(listener, state, seconds)
    fields = {
        "grant_type": "authorization_code",
        "code": _code(answer, metadata),
        "redirect_uri": redirect,
        "code_verifier": verifier,
        "resource": resource,
    }
    async with asking(login.issuer) as client:
        return await given_tokens(client, login, metadata, fields)


def _code(answer: Mapping[str, str], metadata: Mapping[str, Any]) -> str:
    """Return the code of an answer, if the issuer gave it. Raises LoginError."""
    issuer = metadata["issuer"]
    says = metadata.get("authorization_response_iss_parameter_supported") is True
    # RFC 9207: another issuer's answer is not for this one's token endpoint.
    if answer.get("iss", None if says else issuer) != issuer:
        raise LoginError(f"the answer is not of {issuer}")
    if "code" in answer:
        return answer["code"]
    refusal = answer.get("error", "")
    named = refusal if _REFUSAL.fullmatch(refusal) else "without a reason"
    raise LoginError(f"{issuer} refused it: {named}")


async def _listener() -> MultiListener[SocketStream]:
    try:
        return await anyio.create_tcp_listener(local_host="127.0.0.1")
    except OSError as error:
        raise LoginError(f"no port is free: {error.strerror}") from error


async def _answer(
    listener: Listener[SocketStream], state: str, seconds: float
) -> dict[str, str]:
    """Return the first answer with the state. Raises LoginError: none came in time."""
    found: list[dict[str, str]] = []
    limiter = anyio.CapacityLimiter(_MAX_CONNECTIONS)

    async def receive(stream: SocketStream) -> None:
        async with stream:
            if not limiter.available_tokens:
                return
            async with limiter:
                with (
                    suppress(anyio.BrokenResourceError),
                    anyio.move_on_after(_REQUEST_SECONDS),
                ):
                    await answer_to(stream)
        if found:
            tasks.cancel_scope.cancel()

    async def answer_to(stream: SocketStream) -> None:
        answer = await _query(stream)
        given = answer.get("state", "").encode()
        if found or not hmac.compare_digest(given, state.encode()):
            await stream.send(_page("400 Bad Request", _ODD))
            return
        found.append(answer)
        await stream.send(_page("200 OK", _DONE))

    try:
        with anyio.fail_after(seconds), unwrapped_single_error():
            async with anyio.create_task_group() as tasks:
                await listener.serve(receive, tasks)
    except TimeoutError:
        raise LoginError(f"nobody came back within {seconds:g} seconds") from None
    except OSError as error:
        raise LoginError(f"no browser can come back: {error.strerror}") from error
    return found[0]


async def _query(stream: ByteStream) -> dict[str, str]:
    """Return the query of a request; empty: no issuer leads there."""
    head = b""
    while b"\r\n\r\n" not in head:
        if len(head) > _MAX_HEAD_BYTES:
            return {}
        try:
            head += await stream.receive()
        except anyio.EndOfStream:
            return {}
    line = _LINE.match(head)
    try:
        query = parse_qs(line[1].decode(), max_num_fields=32) if line else {}
    except ValueError:
        return {}
    # RFC 6749, 3.1: what comes twice is no answer.
    if any(len(values) > 1 for values in query.values()):
        return {}
    return {name: value for name, [value] in query.items()}


def _page(status: str, text: str) -> bytes:
    """Return an answer that tells the browser nothing but a text."""
    head = (
        f"HTTP/1.1 {status}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(text)}",
        "Cache-Control: no-store",
        "Referrer-Policy: no-referrer",
        "Connection: close",
    )
    return "\r\n".join([*head, "", text]).encode()
