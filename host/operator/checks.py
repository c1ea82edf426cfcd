"""The checks that operators run: of the audit log, its anchors, and isolation."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import time

import anyio

from toolcell.guard import AuditLog
from toolcell.sandbox import SandboxConfig
from toolcell.sandbox.spi import DoctorReport, diagnose

from ..config.host_config import HostConfig
from .audit_anchors import HEADS_FILE, HeadFile
from .audit_check import AuditCheck

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


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorChecks:
    """The parts, all of them open."""

    audit_check: AuditCheck | None
    """The check of the audit log; None: there is no log."""

    heads: HeadFile | None
    """The heads of the log that were kept; None: there is no place for them."""

    doctor: Doctor


@contextmanager
def open_checks(config: HostConfig, audit: AuditLog | None) -> Iterator[OperatorChecks]:
    """Open the parts while the block runs.

    Args:
        config: The configuration.
        audit: The audit log; None: there is none.

    Raises:
        ConfigError: The kept heads cannot be opened.
    """
    with ExitStack() as stack:
        check = heads = None
        if audit is not None:
            check = AuditCheck(audit)
            stack.callback(check.close)
            if config.state.folder is not None:
                heads = stack.enter_context(HeadFile(config.state.folder / HEADS_FILE))
        yield OperatorChecks(
            audit_check=check, heads=heads, doctor=Doctor(config.sandbox)
        )
