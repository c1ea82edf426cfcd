"""The doctor on demand: it starts real cells, so it is not asked too often."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import time

import anyio

from toolcell.sandbox import SandboxConfig
from toolcell.sandbox.spi import DoctorReport, diagnose

FRESH_SECONDS = 60.0
"""Seconds in which the doctor looks once. When asked again within them the last report
is the answer."""


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings of the doctor, and their time."""

    report: DoctorReport
    at: float
    """Seconds since 1970 (UTC)."""


class Doctor:
    """Examines the isolation of this machine, one examination at a time.

    Args:
        config: The configuration of cells.
        examine: Makes the report; default `diagnose`.
        clock: Returns seconds since 1970 (UTC).
    """

    def __init__(
        self,
        config: SandboxConfig,
        *,
        examine: Callable[[SandboxConfig], Awaitable[DoctorReport]] = diagnose,
        clock: Callable[[], float] = time,
    ) -> None:
        self._config = config
        self._examine = examine
        self._clock = clock
        self._turn = anyio.Lock()
        self.last: Examination | None = None
        """The last examination; None: there was none."""

    async def examine(self) -> Examination:
        """Return the findings: new ones, or those of the last minute."""
        async with self._turn:
            at = -math.inf if self.last is None else self.last.at
            if self.last is None or self._clock() - at >= FRESH_SECONDS:
                report = await self._examine(self._config)
                self.last = Examination(report, self._clock())
            return self.last
