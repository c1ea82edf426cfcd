"""Waiting for the audit log's other writers, off the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from toolcell.core import AuditError

from .chain import AuditHead


class AuditBusyError(AuditError):
    """Other processes hold the log, and the caller's thread cannot wait for them.

    Args:
        error: The error that says so.
        append: Writes the record, and may wait for the other writers.
        turn: Limits each event loop to one waiting thread, which keeps the order.
    """

    def __init__(
        self,
        error: AuditError,
        append: Callable[..., AuditHead],
        turn: RunVar[anyio.CapacityLimiter],
    ) -> None:
        super().__init__(error.message, hint=error.hint)
        self._append = append
        self._turn = turn

    async def wait(self) -> None:
        """Write the record when the others have finished, even if cancelled.

        Raises:
            AuditError: They did not finish in time, or the record cannot be written.
        """
        try:
            turn = self._turn.get()
        except LookupError:
            turn = anyio.CapacityLimiter(1)
            self._turn.set(turn)
        write = partial(self._append, asked_at=time.monotonic())
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(write, limiter=turn)
