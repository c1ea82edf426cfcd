"""The gate of a guarded network: who judges what programs send."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from pydantic import JsonValue

ActName = Literal["net.connect", "http.request", "http.upgrade"]
NETWORK_ACTS: tuple[str, ...] = get_args(ActName)
"""The names that rules know."""

Unplaced = Literal["credential_misplaced", "credential_unreadable"]
"""The reasons for which no value of a credential is written into a request: it has a
placeholder where the value may not go; or the value cannot be read."""


class ShownBody(Protocol):
    """The body of a request, which is held while a person looks."""

    @property
    def facts(self) -> Mapping[str, JsonValue]:
        """The arguments of its act that say what it is."""
        ...

    @property
    def shown(self) -> str:
        """Its beginning, for that person."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class NetworkAct:
    """One thing that a program asks of the network."""

    name: ActName
    """`net.connect` opens a connection whose bytes nobody reads here; `http.request`
    is one request that can be read; `http.upgrade` is one that opens a WebSocket."""

    arguments: Mapping[str, JsonValue]
    """The facts that are judged, and that are sent."""

    stop: Callable[[], object]
    """Ends it, soon."""

    outcome: Callable[[], Mapping[str, JsonValue]]
    """Returns what has become of it: `verdict` and `reason` of its connection,
    `bytes_in`, `bytes_out`, and the `status` of an HTTP response."""

    hold_body: Callable[[], Awaitable[ShownBody]] | None = None
    """Reads the body of a request into memory, before it is admitted; what was read is
    what is sent. It raises GuardDeniedError if it cannot. None: it has none."""


class RequestGate(Protocol):
    """Judges what programs send to a guarded network."""

    @property
    def max_pause_seconds(self) -> float:
        """Seconds for which a program's clock may stand still in all while a person
        looks at what it asks for."""
        ...

    def admit(self, act: NetworkAct) -> AbstractAsyncContextManager[None]:
        """Return the context in which an act may happen.

        Where a person is asked it waits in `pause_deadline`, as handlers of `HostCalls`
        do.

        Raises:
            ToolcellError: On entering: the act is refused. `details` may have `reason`,
                `rule` and `retry_after`.
        """
        ...

    async def unplaced(self, act: NetworkAct, reason: Unplaced, message: str) -> None:
        """Take note of an act that is refused for a credential, and was not judged.

        Raises:
            ToolcellError: It cannot be recorded.
        """
        ...
