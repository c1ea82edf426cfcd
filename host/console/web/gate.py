"""The one middleware: each request passes it, and each answer gets its headers.

A request has to name our own host. One that a page of another origin makes is refused,
unless it is a person who follows a link. What acts is a POST, from a form of our own
pages, with the token of its session.
"""

from __future__ import annotations

import hmac
import logging
from functools import partial
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers, ImmutableMultiDict
from starlette.requests import Request, cookie_parser
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolcell.core import StoreUnavailableError
from toolcell.core.event_loop import LARGE, beside_loop

from ...http.bodies import BodyError, whole
from ...http.serving import OpenRequests
from ..accounts.sessions import LoginSession, Sessions

MAX_FIELDS = 1_000
"""Fields of a form. When it is reached the request is answered 400."""

MAX_STRANGERS_BYTES = 65_536
"""Bytes of a form that comes without a session, such as a proof of a passkey. When it
is reached the request is answered 413."""

FORM_TOKEN = "form_token"  # noqa: S105 - the name of a field
_FORM = "application/x-www-form-urlencoded"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    # With no-referrer a form of our own would be sent with `Origin: null`.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Permissions-Policy": "publickey-credentials-get=(self), "
    "publickey-credentials-create=(self), camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
_log = logging.getLogger("toolcell.host")

Form = ImmutableMultiDict[str, str]


class Admitted(NamedTuple):
    """A request that passed the gate, in its scope as `admitted`."""

    session: LoginSession | None
    """The session of its cookie. None: it has none."""

    form: Form
    """The fields of a POST."""


class Gate:
    """Refuses requests that no page of ours makes, and sets the headers of answers.

    Args:
        app: The next application.
        origin: The address of the console, `http://localhost:8932`.
        sessions: The sessions.
        max_body_bytes: Bytes of a form. When it is reached the request is answered 413.
    """

    def __init__(
        self, app: ASGIApp, origin: str, sessions: Sessions, max_body_bytes: int
    ) -> None:
        self._app = app
        self._origin = origin
        self._host = urlsplit(origin).netloc
        self._cookie = cookie_name(origin)
        self._sessions = sessions
        self._open = OpenRequests(sessions.is_open)
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"]] + [
                    (name.lower().encode(), value.encode())
                    for name, value in _HEADERS.items()
                    if name.lower().encode() not in own
                ]
            await send(message)

        refusal = _refuse_cross_site(scope, self._host, self._origin)
        if refusal is None:
            refusal = await self._admit(scope, receive)
        if refusal is not None:
            await refusal(scope, receive, sending)
            return
        with self._open.request(scope) as belongs_to:
            session = scope["admitted"].session
            if session is not None and scope["method"] == "GET":
                belongs_to(session.id)
            await self._app(scope, receive, sending)

    async def _admit(self, scope: Scope, receive: Receive) -> Response | None:
        """Put `admitted` into the scope; return the answer to what is refused."""
        cookie = Headers(scope=scope).get("cookie", "")
        secret = cookie_parser(cookie).get(self._cookie, "")
        form = Form()
        try:
            if scope["method"] == "POST":
                sender = self._sessions.find(secret)
                read = await self._read_form(Request(scope, receive), sender)
                if isinstance(read, Response):
                    return read
                form = read
            # It may have ended while the form came.
            session = self._sessions.find(secret)
            if session is not None and not _is_background(scope):
                self._sessions.note_use(session)
        except StoreUnavailableError as error:
            _log.error("the console cannot read its people: %s", error)
            return PlainTextResponse("the people cannot be read", 503)
        if session is not None and scope["method"] == "POST":
            given = form.get(FORM_TOKEN, "")
            if not hmac.compare_digest(given.encode(), session.form_token.encode()):
                return PlainTextResponse("the form is of another session", 403)
        scope["admitted"] = Admitted(session, form)
        return None

    async def _read_form(
        self, request: Request, sender: LoginSession | None
    ) -> Form | Response:
        media_type = request.headers.get("content-type", "").partition(";")[0]
        if media_type.strip().lower() != _FORM:
            return PlainTextResponse("a form has to be url-encoded", 415)
        most = self._max_body_bytes
        if sender is None:
            most = min(most, MAX_STRANGERS_BYTES)
        try:
            body = await whole(request, most)
            if sender is None or len(body) < LARGE:
                return _parsed(body)
            # No name of an agent has a space.
            turn = f"person {sender.person.id}"
            return await beside_loop(turn, partial(_parsed, body))
        except BodyError as error:
            return PlainTextResponse(error.message, error.status)
        except ValueError:
            return PlainTextResponse("the form cannot be read", 400)


def cookie_name(origin: str) -> str:
    """Return the name of the cookie of sessions.

    With the prefix a browser takes it from our own host alone, over https. On the
    loopback address all ports share their cookies, so the name has the port.
    """
    if origin.startswith("https:"):
        return "__Host-toolcell"
    return f"toolcell-{urlsplit(origin).port or 80}"


def _refuse_cross_site(scope: Scope, host: str, origin: str) -> Response | None:
    """Return the answer to a request that no page of ours, nor a person, makes."""
    headers = Headers(scope=scope)
    if headers.getlist("host") != [host]:
        return PlainTextResponse(f"open {origin}", status_code=421)
    site = headers.get("sec-fetch-site", "none")
    if scope["method"] == "POST":
        ours = headers.getlist("origin") == [origin] and site == "same-origin"
    elif scope["method"] in ("GET", "HEAD"):
        follows = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest"))
        ours = site in ("none", "same-origin") or follows == ("navigate", "document")
    else:
        return PlainTextResponse("no such method", 405, {"Allow": "GET, HEAD, POST"})
    return None if ours else PlainTextResponse("asked from another origin", 403)


def _is_background(scope: Scope) -> bool:
    """Return True for what an open page asks by itself, which is no use of a person."""
    return Headers(scope=scope).get("sec-fetch-mode") != "navigate"


def _parsed(body: bytes) -> Form:
    """Return the fields of a form. Raises ValueError: it cannot be read."""
    fields = parse_qsl(
        body.decode("ascii"),
        keep_blank_values=True,
        strict_parsing=bool(body),
        errors="strict",
        max_num_fields=MAX_FIELDS,
    )
    return Form(fields)
