"""Work that ends with its manager at the latest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.abc


class BackgroundWork:
    """Work of one manager that nobody waits for.

    Args:
        tasks: Owns the work; it outlives this.
    """

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks
        self._scopes: set[anyio.CancelScope] = set()

    def start(self, work: Callable[[], Awaitable[object]]) -> anyio.CancelScope:
        """Start work; return a scope that cancels it."""
        scope = anyio.CancelScope()

        async def run() -> None:
            try:
                with scope:
                    await work()
            finally:
                self._scopes.discard(scope)

        self._scopes.add(scope)
        self._tasks.start_soon(run)
        return scope

    def cancel(self) -> None:
        """Cancel all work that has not ended."""
        for scope in self._scopes:
            scope.cancel()
