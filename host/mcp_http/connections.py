"""Connections of HTTP clients: how many there are, and how long one may say nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""Seconds in which the head of a request has to come, from the connection's begin or
from the answer before. When it is reached the connection is closed."""


class ConnectionLimiter:
    """The connections of one server.

    Whoever sends half a head holds a connection without a token. So one that waits
    for a head makes room for a new one, the longest first: who sends a whole request
    gets an answer.

    Args:
        most: Connections at once. When it is reached the one that has waited longest
            for a request is closed; if none waits, the server's own limit refuses.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[_LimitedConnection, None] = {}

    def protocol(self, **options: Any) -> asyncio.Protocol:
        """Return what a new connection is served by; uvicorn calls it."""
        return _LimitedConnection(self, **options)

    def begin_waiting(self, connection: _LimitedConnection) -> None:
        """Take note that a connection has no request now."""
        self._waiting[connection] = None

    def end_waiting(self, connection: _LimitedConnection) -> None:
        """Take note that it has one, or is gone."""
        self._waiting.pop(connection, None)

    def make_room(self, connection: _LimitedConnection) -> None:
        """End another connection if there are too many with this one."""
        if len(connection.connections) <= self._most:
            return
        for each in self._waiting:
            if each is not connection:
                each.end()
                return


class _LimitedConnection(H11Protocol):
    """One connection, with a deadline for the heads of its requests."""

    def __init__(self, all_of_them: ConnectionLimiter, **options: Any) -> None:
        super().__init__(**options)
        self._all = all_of_them
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        self._all.make_room(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        # Before the next request, which may be there already.
        self._await_head()
        super().on_response_complete()

    def end(self) -> None:
        """Close it at once, whatever is unsent."""
        self._stop_waiting()
        self.transport.abort()

    def _await_head(self) -> None:
        self._stop_waiting()
        self._all.begin_waiting(self)
        self._deadline = self.loop.call_later(HEAD_SECONDS, self.end)

    def _stop_waiting(self) -> None:
        self._all.end_waiting(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
