"""A socket that tasks wait for, and that another task may close meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import anyio

from .leases import lease, shut


class WaitedSocket:
    """Closes a leased socket, once nobody waits for it any more.

    anyio knows a socket by its descriptor. If a new socket got the number before the
    last wait for this one had ended, the end of that wait would end the waits for the
    new one, and its task would get no event.

    Args:
        sock: The socket, non-blocking; closed by this object alone.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = lease(sock)
        self._waits = 0
        self.closed = False
        """True once it was to be closed; nothing may be sent or received then."""

    async def wait(self, event: Callable[[socket.socket], Awaitable[None]]) -> None:
        """Wait until it can be read, or written.

        Args:
            event: `anyio.wait_readable` or `anyio.wait_writable`.

        Raises:
            anyio.ClosedResourceError: It is closed.
        """
        if self.closed:
            raise anyio.ClosedResourceError
        self._waits += 1
        try:
            await event(self._sock)
        finally:
            self._waits -= 1
            self._close_unused()

    def close(self) -> None:
        """End the connection, which the other end sees at once; twice is harmless."""
        if not self.closed:
            self.closed = True
            anyio.notify_closing(self._sock)
            shut(self._sock)
            self._close_unused()

    def _close_unused(self) -> None:
        if self.closed and not self._waits:
            self._sock.close()
