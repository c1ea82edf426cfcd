"""Reports of what goes wrong with cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

CellListener = Callable[[str, Mapping[str, str | None]], None]
"""Receives what happened, and the facts about it, in the event loop."""


class CellEvents:
    """Reports what goes wrong with the cells of one manager.

    That no cell can be made is reported once, until one could be made again: a pool
    tries each second. Nothing is reported once it is closed, since its cells then end
    on purpose.

    Args:
        backend: The backend that makes them.
        listeners: Receive `lost`, `discarded`, `unavailable` and `available`.
    """

    def __init__(self, backend: str, listeners: list[CellListener]) -> None:
        self._backend = backend
        self._listeners = listeners
        self._available = True
        self.closed = False

    def lost(
        self, use: Literal["run", "session", "ready"], agent_id: str | None = None
    ) -> None:
        """Report that a cell ended by itself, or broke the protocol, in a use."""
        self._report("lost", use, agent_id)

    def discarded(
        self, why: Literal["not_clean", "not_renewed"], agent_id: str | None
    ) -> None:
        """Report that an agent's cell cannot have its next program."""
        self._report("discarded", why, agent_id)

    def failed(self, step: Literal["not_made", "not_started"]) -> None:
        """Report that a cell could not be made, if the last one could."""
        if self._available:
            self._available = False
            self._report("unavailable", step)

    def started(self) -> None:
        """Report that cells can be made again, if the last one could not."""
        if not self._available:
            self._available = True
            self._report("available")

    def _report(
        self, event: str, reason: str | None = None, agent_id: str | None = None
    ) -> None:
        if self.closed:
            return
        facts = {"backend": self._backend, "agent": agent_id}
        if reason is not None:
            facts["reason"] = reason
        for listener in self._listeners:
            listener(event, facts)
