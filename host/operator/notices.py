"""Tells whoever listens of the events of a host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import anyio.from_thread
import anyio.lowlevel

from toolcell.guard import ActionGuard
from toolcell.sandbox import SandboxManager
from toolcell.tools.spi import CodeSession, CodeSessions

from .events import (
    EVENTS,
    Event,
    PolicyChanged,
    SessionClosed,
    SessionOpened,
    StoreAvailable,
    StoreUnavailable,
)

Listener = Callable[[Event], None]
"""Told of events, in the event loop of the host."""


class Notices:
    """The listeners of one host. It is made in the event loop of the host."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._thread = threading.get_ident()
        self._loop = anyio.lowlevel.current_token()

    @contextmanager
    def heard(self, listener: Listener) -> Iterator[None]:
        """Tell a listener of all events inside the block."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    @property
    def is_heard(self) -> bool:
        """True if anybody listens."""
        return bool(self._listeners)

    def tell(self, event: Event) -> None:
        """Tell of an event; a thread may do so, and waits until it is told."""
        if threading.get_ident() == self._thread:
            self._tell(event)
        else:
            anyio.from_thread.run_sync(self._tell, event, token=self._loop)

    def _tell(self, event: Event) -> None:
        for each in self._listeners:
            each(event)

    def follow_guard(self, guard: ActionGuard) -> None:
        """Tell of the policies and the store of a guard."""

        def tell(event: str, fields: Mapping[str, str]) -> None:
            match event:
                case "policies":
                    self.tell(PolicyChanged(agent=None, version=fields["version"]))
                case "store_unavailable":
                    self.tell(StoreUnavailable(agent=None, store="guard"))
                case "store_available":
                    self.tell(StoreAvailable(agent=None, store="guard"))

        guard.listeners.append(tell)

    def follow_cells(self, sandbox: SandboxManager) -> None:
        """Tell of cells that are lost, discarded, or cannot be made."""

        def tell(event: str, facts: Mapping[str, str | None]) -> None:
            # Programs run far more often than anybody listens.
            if self.is_heard:
                self.tell(EVENTS[f"cell.{event}"].model_validate(facts))

        sandbox.cell_listeners.append(tell)

    def follow_sessions(self, sessions: CodeSessions) -> None:
        """Tell of sessions of code."""

        def tell(session: CodeSession) -> None:
            agent, number, key = session.agent_id, session.number, session.key
            if session.end is None:
                self.tell(SessionOpened(agent=agent, number=number, session=key))
            else:
                event = SessionClosed(
                    agent=agent, number=number, session=key, reason=session.end
                )
                self.tell(event)

        sessions.listeners.append(tell)
