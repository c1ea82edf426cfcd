"""Server-sent events for pages that are open: they say that something changed."""

from __future__ import annotations

from starlette.responses import Response

from ...http.streams import event_stream
from ...operator.event_bus import OPERATORS
from .visit import Visit

STREAM_SECONDS = 3_600.0
"""Seconds of one stream. When it is reached the page opens a new one."""


async def stream(visit: Visit) -> Response:
    """Answer with the events after `Last-Event-ID`, or after the page that asks."""
    events = visit.console.events.read(
        OPERATORS,
        visit.request.headers.get("last-event-id", visit.query("after")),
        seconds=STREAM_SECONDS,
    )
    return event_stream(events)
