"""The first frames between a host and a cell."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel

from toolcell.core import CellLostError, SandboxUnavailableError

from ..cell.wire.frames import PROTOCOL_VERSION, Frame, encode
from .channel import Channel

_START_SECONDS = 30.0
_LAST_WORDS_SECONDS = 1.0


class Handshake:
    """Greets a cell's supervisor once, and takes its answer.

    The greeting may be sent with the first request; `complete` has to be awaited
    before the answer to that is received.

    Args:
        channel: Leads to the supervisor.
        settings: Settings of the walls around its programs.
        on_code: Called with the supervisor's own modules, if it sends them.
    """

    def __init__(
        self,
        channel: Channel,
        settings: dict[str, Any],
        on_code: Callable[[bytes], None] | None,
    ) -> None:
        self._channel = channel
        self._settings = settings
        self._on_code = on_code
        # On the clock of the event loop.
        self._greeted_at: float | None = None
        self.started: bool | None = None
        """True once the cell is ready, False if it is not fit to be; None: it is not
        known yet."""

        # A run and what passes beside it may both wait for the answer.
        self._waiting = anyio.Lock(fast_acquire=True)

    @property
    def is_under_way(self) -> bool:
        """True from the greeting until its answer is taken."""
        return self._greeted_at is not None and self.started is None

    def hello(self) -> bytes:
        """Return the first frame that a cell gets; empty once it was sent."""
        if self._greeted_at is not None:
            return b""
        self._greeted_at = anyio.current_time()
        hello = {
            "type": "hello",
            "protocol": PROTOCOL_VERSION,
            "settings": self._settings,
            "code": self._on_code is not None,
        }
        return encode(hello)

    async def send(self, *parts: bytes | memoryview) -> None:
        """Send to a cell that may not have started.

        Where nothing can be sent what the cell has said may still be received.

        Raises:
            CellLostError: It was known to have started, and is gone; or this host has
                ended it.
            SandboxUnavailableError: It ended before it had started.
        """
        try:
            await self._channel.send(*parts)
        except CellLostError:
            if self.started or self._channel.is_closed:
                raise
            await self.complete()

    async def complete(self) -> None:
        """Wait until the supervisor has prepared a process, unless it has.

        Raises:
            CellLostError: This host has ended the cell.
            SandboxUnavailableError: It could not, or did not in 30 seconds.
        """
        if self.started:
            return
        async with self._waiting:
            # Another task may have waited for the same answer.
            if not self.started:
                try:
                    await self._take_answer()
                except SandboxUnavailableError:
                    self.started = False
                    raise

    async def _take_answer(self) -> None:
        hello = self.hello()
        if hello:
            # What it said before it ended is its answer.
            with contextlib.suppress(CellLostError):
                await self._channel.send(hello)
        try:
            with anyio.fail_after(_START_SECONDS):
                frame = await self._channel.receive()
        except TimeoutError:
            raise SandboxUnavailableError(
                "the cell did not start in time: it was made, and has not answered "
                f"its greeting {self._waited()}",
                hint="free CPU or memory here; `toolcell doctor` tries a cell",
            ) from None
        except CellLostError as error:
            if self._channel.is_closed:
                raise
            why = f"{error.message}, and it had not answered its greeting "
            raise _not_started(self._channel, why + self._waited()) from None
        self._check(frame)

    def _waited(self) -> str:
        """Return how long ago it was greeted, for an error."""
        assert self._greeted_at is not None
        return f"after {anyio.current_time() - self._greeted_at:.1f} seconds"

    def _check(self, frame: Frame) -> None:
        header = frame.header
        if header["type"] == "failed":
            raise _not_started(self._channel, str(header.get("why", ""))[:1000])
        if header["type"] != "ready":
            raise CellLostError(f"unexpected frame {header['type'][:40]!r}")
        if header.get("protocol") != PROTOCOL_VERSION:
            raise SandboxUnavailableError(
                f"the cell speaks protocol {header.get('protocol')!r}, "
                f"this host {PROTOCOL_VERSION}",
                hint="host and cell must come from the same toolcell release",
            )
        self.started = True
        if self._on_code is not None and frame.payload:
            self._on_code(frame.payload)


async def send_first(channel: Channel, *parts: bytes | memoryview) -> None:
    """Send to a cell that has not started.

    Raises:
        CellLostError: This host has ended it.
        SandboxUnavailableError: It ended; what its standard error said is the reason.
    """
    try:
        await channel.send(*parts)
    except CellLostError as error:
        if channel.is_closed:
            raise
        why = await _last_words(channel) or error.message
        raise _not_started(channel, why) from None


async def _last_words(channel: Channel) -> str:
    """Read what a cell that ended still says, and return how its channel ended."""
    with anyio.move_on_after(_LAST_WORDS_SECONDS):
        try:
            while True:
                await anyio.lowlevel.checkpoint()
                await channel.read_more()
        except CellLostError as error:
            return error.message
    return ""


def _not_started(channel: Channel, why: str) -> SandboxUnavailableError:
    stderr = channel.diagnostics
    return SandboxUnavailableError(
        f"the cell did not start: {stderr.splitlines()[-1] if stderr else why}",
        hint="run `toolcell doctor`; a Docker image needs python3 3.8 or newer",
        details={"stderr": stderr},
    )
