"""The application: the table of routes behind the gate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from time import time

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from toolcell.core.secrets import read_secret

from ..operator.checks import OperatorChecks, open_checks
from ..operator.event_bus import Events
from ..operator.people import People, Person
from ..operator.people_file import PeopleFile
from ..operator.vouching import Vouching
from ..runtime.sources import Sources
from .accounts.oidc import OIDC
from .accounts.passkeys import Passkeys
from .accounts.rights import Rights
from .accounts.sessions import Failures, Sessions
from .routes import TABLE
from .web.gate import Gate
from .web.templating import make_templates
from .web.visit import ActionRefusedError, Console, Page, Visit, refusal, route_of

STATIC = Path(__file__).resolve().parent / "static"


@asynccontextmanager
async def open_app(
    sources: Sources,
    file: PeopleFile,
    origin: str,
    events: Events,
) -> AsyncIterator[ASGIApp]:
    """Open the application.

    Args:
        sources: The state that pages show.
        file: The people.
        origin: The address that people open.
        events: The events of the host; pages that are open follow them.
    """
    with ExitStack() as stack:
        checks = stack.enter_context(open_checks(sources.config, sources.audit))
        acts = stack.enter_context(file.second_connection())
        rights = Rights(acts, _sessions(sources, acts), sources.approvals)
        oidc = await _issuer(sources, rights, origin, file.clock)
        yield _gated(_console(sources, file, rights, origin, oidc, events, checks))


def _sessions(sources: Sources, file: PeopleFile) -> Sessions:
    settings = sources.config.console
    return Sessions(file, settings.session_hours * 3_600, settings.idle_minutes * 60)


def _console(
    sources: Sources,
    file: PeopleFile,
    rights: Rights,
    origin: str,
    oidc: OIDC | None,
    events: Events,
    checks: OperatorChecks,
) -> Console:
    people = People(file)
    return Console(
        origin=origin,
        sources=sources,
        people=people,
        rights=rights,
        sessions=_sessions(sources, file),
        failures=Failures(file),
        vouching=Vouching(file),
        passkeys=Passkeys(people, origin, clock=file.clock),
        oidc=oidc,
        events=events,
        checks=checks,
        began_at=time(),
        templates=make_templates(),
        navigation=[
            (route.path, route.link)
            for route in TABLE
            if isinstance(route, Page) and route.link is not None
        ],
    )


async def _issuer(
    sources: Sources, rights: Rights, origin: str, clock: Callable[[], float]
) -> OIDC | None:
    """Return the issuer, and store the people who may sign in with it.

    Raises:
        ConfigError: The secret is missing.
        InvalidInputError: A name is that of a person with a passkey.
        AuditError: What people had approved who are gone cannot be withdrawn.
    """
    settings = sources.config.console.oidc
    configured = {} if settings is None else settings.people
    people = {
        subject: Person(each.name, each.role, each.agents, 0.0)
        for subject, each in configured.items()
    }
    await rights.put_subjects("" if settings is None else settings.issuer, people)
    if settings is None:
        return None
    reference = settings.client_secret
    secret = None if reference is None else read_secret(reference)
    return OIDC(settings, secret, origin, clock=clock)


def _gated(console: Console) -> ASGIApp:
    async def missing(request: Request, _: Exception) -> Response:
        error = ActionRefusedError(404, "there is no such page")
        return refusal(Visit(console, request), error)

    app = Starlette(
        routes=[
            *(route_of(route, console) for route in TABLE),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={404: missing},
    )
    limit = console.sources.config.server.max_body_bytes
    return Gate(app, console.origin, console.sessions, limit)
