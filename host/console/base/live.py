"""Server-sent events for pages that are open: they tell that something changed."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response, StreamingResponse

from ...rest.events import Events
from .visit import Visit

STREAM_SECONDS = 3_600.0
"""Seconds of one stream. When it is reached the page opens a new one."""

_ALL = ""


class ConsoleEvents(Events):
    """The events of all agents, as one stream."""

    def add(self, agent_id: str, kind: str, **facts: Any) -> None:
        super().add(_ALL, kind, agent=agent_id, **facts)


async def stream(visit: Visit) -> Response:
    """Answer with the events from now on, or after `Last-Event-ID`."""
    console, session = visit.console, visit.session
    assert session is not None
    events = console.events.read(
        _ALL,
        visit.request.headers.get("last-event-id"),
        seconds=STREAM_SECONDS,
        may_read=lambda: console.sessions.is_open(session),
    )
    return StreamingResponse(events, media_type="text/event-stream")
