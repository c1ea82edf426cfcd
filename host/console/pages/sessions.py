"""Sessions of code: who holds which, and the ways to interrupt and close them."""

from __future__ import annotations

from typing import Literal

import anyio
from starlette.responses import Response

from toolcell.tools.spi import CodeSession, CodeSessions

from ...operator.actions import stop_session
from ...operator.session_usage import measured
from ..web.visit import ActionRefusedError, Visit


async def show(visit: Visit) -> Response:
    """Show the sessions that are open, the oldest first."""
    host, sessions = visit.sources.host, None
    if host is not None and host.sessions is not None:
        sessions = await measured(host.sessions)
    return visit.render(
        "sessions.html",
        here=host is not None,
        sessions=sessions,
        limit=visit.sources.config.tools.max_sessions,
        now=anyio.current_time(),
    )


async def interrupt(visit: Visit) -> Response:
    """Interrupt the program of a session, as Ctrl-C does."""
    return await _stop(visit, "interrupt")


async def close(visit: Visit) -> Response:
    """Close a session; its variables and files are lost."""
    return await _stop(visit, "close")


async def _stop(visit: Visit, way: Literal["close", "interrupt"]) -> Response:
    by, audit = visit.person.id, visit.sources.audit
    recorded = await stop_session(*_find(visit), way, by=by, audit=audit)
    return visit.stopped("/sessions", recorded=recorded)


def _find(visit: Visit) -> tuple[CodeSessions, CodeSession]:
    host = visit.sources.host
    if host is not None and host.sessions is not None:
        for session in host.sessions.all():
            if str(session.number) == visit.part("number"):
                return host.sessions, session
    raise ActionRefusedError(
        404, "this session is not open", hint="it was closed, or has ended by itself"
    )
