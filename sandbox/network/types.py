"""Types that the parts of a run's network share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from ..config.host_rules import DEFAULT_PORTS

if TYPE_CHECKING:
    from ..results.result import Connection

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host name and port, or raises OSError."""

OnConnection = Callable[["Connection"], None]
"""Called with each connection that has ended or was refused."""


HTTP_PORT = DEFAULT_PORTS["http"]
REFUSAL = "X-Toolcell-Refusal"
"""The header of a response that says why a guard, or its proxy, refuses."""


class EgressError(Exception):
    """A request of a program is refused.

    Args:
        reason: The reason, for the record of the connection.
        answer: The reply in the program's own protocol; empty for none.
        headers: Headers of a reply in HTTP.
    """

    def __init__(
        self,
        reason: str,
        answer: bytes = b"",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(reason)
        self.answer = answer
        self.headers = headers


class SendFrame(Protocol):
    """Sends one frame, a header and a payload, to a cell. Raises CellLostError."""

    def __call__(
        self, header: dict[str, Any], payload: bytes | memoryview = b""
    ) -> Awaitable[None]: ...


class ByteStream(Protocol):
    """The program's end of a connection."""

    async def receive(self) -> bytes:
        """Return the next bytes; empty at the end."""
        ...

    async def send(self, data: bytes) -> None:
        """Send all of `data` to the program."""
        ...


class ProgramEnd(ByteStream, Protocol):
    """The program's end of a connection, which may end while nobody reads it."""

    async def ended(self) -> None:
        """Wait until the program has sent its last byte, or closed the connection."""
        ...


class PlainAnswer(Protocol):
    """Makes the answer of a server one of the proxy."""

    @property
    def status(self) -> int | None:
        """The status code, once it has come."""
        ...

    async def pass_on(self, data: bytes | memoryview) -> bytes | memoryview:
        """Return the bytes for the program that these ones of the server allow.

        Raises:
            OSError: It may not be shown.
        """
        ...

    async def end(self) -> bytes:
        """Return what is left when the server has ended. Raises OSError."""
        ...
