"""Ends requests that are open when their client may go on no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import anyio
from starlette.types import Scope

from toolcell.core import StoreUnavailableError

LOOK_SECONDS = 0.5
"""Seconds between two looks at whoever has requests open. Those of a client whose token
was revoked, or who was signed out, end within it."""

K = TypeVar("K", bound=Hashable)


class OpenRequests(Generic[K]):
    """The requests of one server that are open, by token or session.

    A token is looked at when a request begins; a stream would outlive it for as long as
    its client reads. So whoever has requests open is looked at again and again.

    Args:
        may_go_on: Returns False for a client whose requests have to end.
    """

    def __init__(self, may_go_on: Callable[[K], bool]) -> None:
        self._may_go_on = may_go_on
        self._open: dict[K, set[_Open]] = {}
        self._next_look: asyncio.TimerHandle | None = None

    @contextmanager
    def request(self, scope: Scope) -> Iterator[Callable[[K], None]]:
        """Hold a request while it is open.

        Its end breaks off the connection: what came until then is not the whole answer.

        Args:
            scope: The scope of the request.

        Yields:
            The function by which the request is told whose it is.
        """
        mine = _Open(scope)
        keys: list[K] = []

        def belongs_to(key: K) -> None:
            keys.append(key)
            self._open.setdefault(key, set()).add(mine)
            self._look_later()

        with mine.cancel:
            try:
                yield belongs_to
            finally:
                for key in keys:
                    self._open[key].discard(mine)
                    if not self._open[key]:
                        del self._open[key]

    def _look_later(self) -> None:
        if self._next_look is None:
            loop = asyncio.get_running_loop()
            self._next_look = loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._next_look = None
        if self._open:
            self._look_later()
        for key in [key for key in self._open if not self._is_good(key)]:
            for each in self._open.get(key, ()):
                each.end()

    def _is_good(self, key: K) -> bool:
        try:
            return self._may_go_on(key)
        except StoreUnavailableError:
            # No token is accepted while nobody can say whether it is good.
            return False


class _Open:
    """One request."""

    def __init__(self, scope: Scope) -> None:
        self.cancel = anyio.CancelScope()
        state: dict[str, Any] = scope.get("state") or {}
        self._abort: Callable[[], object] = state.get("abort", _nothing)

    def end(self) -> None:
        self._abort()
        self.cancel.cancel()


def _nothing() -> None: ...
