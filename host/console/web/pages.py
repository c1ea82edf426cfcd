"""The declarations of pages and acts, and how each is answered."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from toolcell.core import (
    AuditError,
    InvalidInputError,
    StoreUnavailableError,
    ToolcellError,
)

from ..accounts.people import Role
from .visit import ActionRefusedError, Console, Visit

Handler = Callable[[Visit], Awaitable[Response]]
_log = logging.getLogger("toolcell.host")


@dataclass(frozen=True, slots=True)
class Page:
    """A page, or a stream of events: it is read by GET, and changes nothing."""

    path: str
    """Its path, such as `/runs/{id}`."""

    show: Handler
    role: Role | None = "viewer"
    """The role that it takes. None: everybody may read it."""

    link: str | None = None
    """The text of its link at the head of all pages. None: it has none there."""


@dataclass(frozen=True, slots=True)
class Act:
    """An act: a POST of a form, which goes on to a page with `visit.go`."""

    path: str
    do: Handler
    role: Role | None
    """The role that it takes. None: everybody may try it, as to sign in."""

    fresh: bool = False
    """True if it takes a touch of the passkey within the last five minutes."""


def route_of(item: Page | Act, console: Console) -> Route:
    """Return the route of a page or an act."""

    async def answer(request: Request) -> Response:
        visit = Visit(console, request)
        try:
            if item.role is not None:
                if visit.session is None:
                    return _to_login(visit)
                visit.require(item.role)
            if isinstance(item, Page):
                if visit.session is not None:
                    await visit.count_waiting()
                return await item.show(visit)
            if item.fresh:
                visit.check_fresh()
            return await item.do(visit)
        except ToolcellError as error:
            return refusal(visit, error)

    methods = ["GET"] if isinstance(item, Page) else ["POST"]
    return Route(item.path, answer, methods=methods)


def refusal(visit: Visit, error: ToolcellError) -> Response:
    """Return the page that tells what was not done, and why."""
    match error:
        case ActionRefusedError():
            status = error.status
        case InvalidInputError():
            status = 409
        case AuditError() | StoreUnavailableError():
            status = 503
        case _:
            _log.error("a page of the console failed", exc_info=error)
            status = 500
    return visit.render("not_done.html", status=status, error=error)


def _to_login(visit: Visit) -> Response:
    request = visit.request
    if request.method == "POST":
        return refusal(
            visit,
            ActionRefusedError(401, "your session has ended", hint="sign in again"),
        )
    if request.headers.get("sec-fetch-mode", "navigate") != "navigate":
        return Response(status_code=401)
    query = f"?{request.url.query}" if request.url.query else ""
    url = f"/login?next={quote(request.url.path + query)}"
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        # A link elsewhere led here, and so without the cookie. What this page asks for
        # by itself comes with it.
        return visit.render("arrived.html", url=url)
    return RedirectResponse(url, status_code=303)
