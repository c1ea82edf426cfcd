"""Types that the parts of a run's network share."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol


class SendFrame(Protocol):
    """Sends one frame, a header and a payload, to a cell. Raises CellLostError."""

    def __call__(
        self, header: dict[str, Any], payload: bytes = b""
    ) -> Awaitable[None]: ...


class ByteStream(Protocol):
    """The program's end of a connection."""

    async def receive(self) -> bytes:
        """Return the next bytes; empty at the end."""
        ...

    async def send(self, data: bytes) -> None:
        """Send all of `data` to the program."""
        ...
