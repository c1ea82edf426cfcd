"""Connections of TLS that never block: bytes are taken and given as they come.

A socket is used without a stream around it, since a run is a few small messages, and
each layer between them and the kernel costs as much as the message.
"""

from __future__ import annotations

import socket
import ssl
from typing import Self

import anyio

_READ_BYTES = 64 * 1024
_TURN_BYTES = 256 * 1024


class TLSSocket:
    """One connection, owned by one event loop.

    Args:
        plain: The connected socket; it is this object's from now on.
        context: The settings of TLS.
        server_side: True at the end that was connected to.
    """

    def __init__(
        self, plain: socket.socket, context: ssl.SSLContext, *, server_side: bool
    ) -> None:
        plain.setblocking(False)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(
            plain, server_side=server_side, do_handshake_on_connect=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    @property
    def certificate(self) -> bytes:
        """The other end's certificate in DER; empty: it has shown none."""
        return self._socket.getpeercert(binary_form=True) or b""

    async def shake_hands(self) -> None:
        """Begin TLS. Raises OSError."""
        while True:
            try:
                return self._socket.do_handshake()
            except ssl.SSLWantReadError:
                await anyio.wait_readable(self._socket)
            except ssl.SSLWantWriteError:
                await self.writable()

    async def receive(self) -> bytes:
        """Wait for bytes and return those that are there; none: it was closed.

        Raises:
            OSError: The connection broke.
        """
        while True:
            if not self._socket.pending():
                await anyio.wait_readable(self._socket)
            pieces: list[bytes] = []
            try:
                while len(pieces) * _READ_BYTES < _TURN_BYTES:
                    pieces.append(self._socket.recv(_READ_BYTES))
                    if not pieces[-1]:
                        return b"".join(pieces)
            except ssl.SSLWantReadError:
                pass
            if pieces:
                return b"".join(pieces)

    async def receive_exactly(self, size: int) -> bytes:
        """Wait for so many bytes. Raises OSError and EOFError."""
        found = b""
        while len(found) < size:
            try:
                more = self._socket.recv(size - len(found))
            except ssl.SSLWantReadError:
                await anyio.wait_readable(self._socket)
                continue
            if not more:
                raise EOFError
            found += more
        return found

    def write(self, data: memoryview) -> int:
        """Give bytes to the kernel; return how many it has taken. Raises OSError.

        What was not taken has to come first the next time.
        """
        try:
            return self._socket.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0

    async def writable(self) -> None:
        """Return when the kernel takes bytes again."""
        await anyio.wait_writable(self._socket)

    async def send(self, data: bytes) -> None:
        """Give all bytes to the kernel. Raises OSError."""
        left = memoryview(data)
        while left := left[self.write(left) :]:
            await self.writable()

    def close(self) -> None:
        """Close the connection; again: nothing. Nobody may wait for it any more."""
        self._socket.close()
