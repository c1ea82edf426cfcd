"""Requests that passed the gate, and the pages and actions that answer them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import anyio.to_thread
from jinja2 import Environment
from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from toolcell.core import (
    AuditError,
    InvalidInputError,
    StoreUnavailableError,
    ToolcellError,
)
from toolcell.core.event_loop import beside_loop
from toolcell.core.text.json_size import count_values
from toolcell.core.text.strict_json import read_json

from ...operator.checks import OperatorChecks
from ...operator.event_bus import OPERATORS, Events
from ...operator.people import People, Person, Role
from ...operator.vouching import Vouching
from ...runtime.sources import Sources
from ..accounts.oidc import OIDC
from ..accounts.passkeys import Passkeys
from ..accounts.rights import Rights
from ..accounts.sessions import Failures, LoginSession, Sessions
from .gate import Admitted, Form, cookie_name

_log = logging.getLogger("toolcell.host")
MAX_ARGUMENT_VALUES = 50_000
"""Values of the arguments that a person wrote. With more they are refused, unread."""


class ActionRefusedError(ToolcellError):
    """An action that was not done, or a page that is not shown, and why.

    Args:
        status: The HTTP status of the answer.
        message: The reason, for people.
        hint: Advice for them.
    """

    kind = "console.not_done"

    def __init__(self, status: int, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """The parts that all pages share."""

    origin: str
    """The address that people open, such as `http://localhost:8932`."""

    sources: Sources
    people: People
    rights: Rights
    sessions: Sessions
    failures: Failures
    vouching: Vouching
    passkeys: Passkeys
    oidc: OIDC | None
    """The issuer to sign in with. None: passkeys alone."""

    events: Events
    checks: OperatorChecks
    began_at: float
    """The time at which it began to serve, in seconds since 1970 (UTC)."""

    templates: Environment
    navigation: Sequence[tuple[str, str]]
    """The links to pages at the head of each: path and text."""


class Visit:
    """A request, and who makes it.

    Args:
        console: The console.
        request: The request; it passed the gate.
    """

    def __init__(self, console: Console, request: Request) -> None:
        self.console = console
        self.request = request
        admitted: Admitted = request.scope["admitted"]
        self.session: LoginSession | None = admitted.session
        self.form: Form = admitted.form
        # Taken before the page looks at anything, so that it misses no change.
        self.latest_event = console.events.latest(OPERATORS)
        self.waiting: int | None = None
        """The calls that wait for a person, as the head of pages shows them."""

    @property
    def sources(self) -> Sources:
        """The state that pages show."""
        return self.console.sources

    @property
    def person(self) -> Person:
        """The person who is signed in; pages with a role always have one."""
        assert self.session is not None
        return self.session.person

    @property
    def address(self) -> str:
        """The address of the browser, or of a proxy that is not trusted to tell it."""
        client = self.request.client
        return "" if client is None else client.host

    def part(self, name: str) -> str:
        """Return a part of the path, such as `id` of `/approvals/{id}`."""
        return str(self.request.path_params[name])

    def query(self, name: str, default: str = "") -> str:
        """Return a value of the query."""
        return self.request.query_params.get(name, default)

    async def count_waiting(self) -> None:
        """Count the calls that wait; where they cannot be read there is no count."""
        with suppress(StoreUnavailableError):
            self.waiting = await self.sources.approvals.count_waited_for()

    def require(self, role: Role) -> None:
        """Check that the person has a role.

        Raises:
            ActionRefusedError: The person has not.
        """
        if not self.person.has(role):
            raise ActionRefusedError(
                403, f"this takes the role {role}", hint="an admin can give it to you"
            )

    @property
    def fresh_seconds(self) -> float:
        """The seconds left in which actions that need a fresh passkey are accepted."""
        session = self.session
        return 0.0 if session is None else self.console.sessions.fresh_seconds(session)

    def check_fresh(self) -> None:
        """Check that the person touched a passkey a short time ago, or does so now.

        Raises:
            ActionRefusedError: The person did not.
            InvalidInputError: The proof in the form does not hold.
        """
        session, console = self.session, self.console
        assert session is not None
        proof = self.form.get("proof", "")
        if proof:
            self.check_attempts(session.person.id)
            try:
                name = console.passkeys.prove(touch_purpose(session), proof)
            except ToolcellError:
                console.failures.add(session.person.id)
                raise
            if name == session.person.id:
                console.sessions.note_touch(session)
                return
            console.failures.add(session.person.id)
        elif console.sessions.fresh_seconds(session) > 0:
            return
        raise ActionRefusedError(
            403,
            "this takes a touch of your passkey",
            hint="go back and do it again with scripts allowed, or sign in again",
        )

    def check_attempts(self, key: str) -> None:
        """Check that there were not too many failures of an address or a person.

        Raises:
            ActionRefusedError: There were.
        """
        seconds = self.console.failures.seconds_to_wait(key)
        if seconds:
            raise ActionRefusedError(
                429, "too many attempts failed", hint=f"try again in {seconds} s"
            )

    async def record(self, event: str, **facts: Any) -> None:
        """Record an action of the person in the audit log, if there is one.

        Raises:
            AuditError: It cannot be recorded; the action must not be done.
        """
        await self._append(event, by=self.person.id, **facts)

    async def _append(self, event: str, **facts: Any) -> None:
        audit = self.sources.audit
        if audit is not None:
            await anyio.to_thread.run_sync(partial(audit.append, event, **facts))

    def render(
        self, template: str, *, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """Return a page.

        Args:
            template: A file of `templates/`.
            status: The HTTP status.
            values: The names that the template knows beside `visit`. Text of any origin
                may be in them: it is escaped.
        """
        found = self.console.templates.get_template(template)
        return HTMLResponse(found.render(visit=self, **values), status)

    async def render_large(
        self, template: str, owner: str, **values: Any
    ) -> HTMLResponse:
        """Return a page that may be large; it is made beside the event loop.

        Args:
            template: As for `render`.
            owner: The agent whose text it shows. Its pages are made one after another.
            values: As for `render`.
        """
        return await beside_loop(owner, partial(self.render, template, **values))

    def go(self, path: str) -> Response:
        """Return the answer to an action that was done: the page to see next."""
        return RedirectResponse(path, status_code=303)

    def stopped(self, path: str, *, recorded: bool) -> Response:
        """Return the answer to an action that stopped something.

        Args:
            path: The page to see next.
            recorded: False shows a notice first: the audit log lacks the action.
        """
        if recorded:
            return self.go(path)
        return self.render("not_recorded.html", path=path)

    async def sign_in(
        self, answer: Response, person_id: str, passkey: bytes | None = None
    ) -> Response:
        """Open a session of a person who has proved it, in an answer; return it.

        Args:
            answer: The answer.
            person_id: The person.
            passkey: The id of the passkey that proved it.

        Raises:
            AuditError: It cannot be recorded; there is no session.
        """
        await self._append("person_signed_in", by=person_id, address=self.address)
        if self.session is not None:
            self.console.sessions.close(self.session.id)
        secret = self.console.sessions.open(person_id, self.address, passkey)
        answer.set_cookie(
            cookie_name(self.console.origin),
            secret,
            secure=self.console.origin.startswith("https:"),
            httponly=True,
            samesite="strict",
        )
        return answer


def touch_purpose(session: LoginSession) -> str:
    """Return the purpose of a proof within a session."""
    return f"touch {session.id}"


def read_arguments(text: str) -> dict[str, JsonValue]:
    """Return the arguments of a call that a person wrote.

    Raises:
        InvalidInputError: They are no JSON object, or have too many values.
    """
    try:
        data = text.encode()
        if count_values(data, MAX_ARGUMENT_VALUES) > MAX_ARGUMENT_VALUES:
            raise ValueError(f"there are more than {MAX_ARGUMENT_VALUES:,} values")
        found = read_json(data)
    except ValueError as error:
        raise InvalidInputError(
            f"the arguments cannot be read as JSON: {error}",
            hint="go back and correct them",
        ) from None
    if not isinstance(found, dict):
        raise InvalidInputError(
            "the arguments are no JSON object", hint='write them as {"name": "value"}'
        )
    return found


Handler = Callable[[Visit], Awaitable[Response]]


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
class Action:
    """An action: a POST of a form, which goes on to a page with `visit.go`."""

    path: str
    do: Handler
    role: Role | None
    """The role that it takes. None: everybody may try it, as to sign in."""

    fresh: bool = False
    """True if it takes a touch of the passkey within the last five minutes."""


def route_of(item: Page | Action, console: Console) -> Route:
    """Return the route of a page or an action."""

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
