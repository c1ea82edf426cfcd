"""TLS over any stream of bytes."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import TypeVar

import anyio

from toolcell.core.event_loop import SmallParts
from toolcell.core.http_exchange import TAKE_CUTS_FOR_ENDS

from ..cell.wire.contract import PIECE_BYTES
from .types import ByteStream

_RECORD_BYTES = 16_384
# Python before 3.11.4 has no error of its own for it.
_CUT = "UNEXPECTED_EOF_WHILE_READING"

T = TypeVar("T")


class TLSStream:
    """The plain text of a connection.

    It reads all records that have come before it waits for more, which is three times
    as fast as anyio's stream.

    Args:
        wire: Carries the records.
        context: The settings of this end.
        server_name: The host that must prove its name; None if this end is the server.
        first: Bytes that came already.
    """

    def __init__(
        self,
        wire: ByteStream,
        context: ssl.SSLContext,
        server_name: str | None = None,
        first: bytes = b"",
    ) -> None:
        self._wire = wire
        context.options &= ~TAKE_CUTS_FOR_ENDS
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._in.write(first)
        self._tls = context.wrap_bio(
            self._in,
            self._out,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        self._sending = anyio.Lock(fast_acquire=True)
        self._sent = SmallParts()
        self.was_cut = False
        """True if it ended, and the other end has not said that it does."""

    @property
    def has_more(self) -> bool:
        """True if bytes of the other end came that nobody has received."""
        return bool(self._in.pending or self._tls.pending())

    async def handshake(self) -> None:
        """Agree on keys, and check the other end's certificate.

        Raises:
            OSError: It failed; `ssl.SSLCertVerificationError` for a certificate.
        """
        try:
            await self._when_read(self._tls.do_handshake)
        finally:
            # An alert tells the other end why.
            await self._flush()

    async def receive(self) -> bytes:
        """Return the next bytes; empty at the end. Raises OSError."""
        try:
            parts = [await self._when_read(lambda: self._tls.read(_RECORD_BYTES))]
            size = len(parts[0])
            while parts[-1] and size < PIECE_BYTES:
                try:
                    parts.append(self._tls.read(_RECORD_BYTES))
                except ssl.SSLError:
                    # Nothing more for now, or an error, which the next call raises.
                    break
                size += len(parts[-1])
        except ssl.SSLError as error:
            if not isinstance(error, ssl.SSLEOFError) and error.reason != _CUT:
                raise
            # Many servers end so; h11 knows if a counted body is not whole.
            self.was_cut = True
            return b""
        return b"".join(parts)

    async def send(self, data: bytes) -> None:
        """Send all of `data`. Raises OSError."""
        await self._sent.begin()
        for start in range(0, len(data), PIECE_BYTES):
            self._tls.write(data[start : start + PIECE_BYTES])
            await self._flush()

    async def end(self) -> None:
        """Tell the other end that no more will come. Raises OSError."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            # It has not said so itself.
            pass
        await self._flush()

    async def _when_read(self, step: Callable[[], T]) -> T:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                await self._flush()
                if data := await self._wire.receive():
                    self._in.write(data)
                else:
                    self._in.write_eof()

    async def _flush(self) -> None:
        if not self._out.pending:
            return
        async with self._sending:
            if data := self._out.read():
                await self._wire.send(data)
