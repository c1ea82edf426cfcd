"""Reports the progress of a call to its MCP client."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from mcp.server.session import ServerSession

from toolcell.tools.spi import Progress

PERIOD_SECONDS = 1.0
"""Seconds of silence after which a client is sent a keep-alive report."""

_KEEP_ALIVE_STEP = 1e-6

MAX_WAITING = 100
"""Reports that wait to be sent. When it is reached the oldest are dropped."""


class ProgressRelay:
    """Sends a tool's reports, and keep-alive reports while it is silent.

    Args:
        session: The client's session.
    """

    def __init__(self, session: ServerSession) -> None:
        self._session = session
        self._last = 0.0
        self._began = time.monotonic()
        self._waiting: deque[Progress] = deque(maxlen=MAX_WAITING)
        self._wake = anyio.Event()
        self._ended = False
        self._loop = asyncio.get_running_loop()

    def report(self, progress: Progress) -> None:
        """Queue a report, from any thread."""
        self._waiting.append(progress)
        self._loop.call_soon_threadsafe(self._awake)

    def _awake(self) -> None:
        self._wake.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send reports while the call runs, and the last ones at its end."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_all)
            yield
            self._ended = True
            self._wake.set()

    async def _send_all(self) -> None:
        while not (self._ended and not self._waiting):
            with anyio.move_on_after(PERIOD_SECONDS) as period:
                await self._wake.wait()
            if not self._ended:
                self._wake = anyio.Event()
            while self._waiting:
                report = self._waiting.popleft()
                await self._send(report.progress, report.total, report.message)
            if period.cancelled_caught and not self._ended:
                # MCP demands that the number grows, so add the smallest amount.
                seconds = time.monotonic() - self._began
                await self._send(
                    self._last + _KEEP_ALIVE_STEP, None, f"running for {seconds:.0f} s"
                )

    async def _send(
        self, progress: float, total: float | None, message: str | None
    ) -> None:
        self._last = max(self._last, progress)
        await self._session.report_progress(progress, total, message)
