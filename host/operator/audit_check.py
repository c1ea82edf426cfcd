"""A check of the whole audit log in a thread, which reports how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from time import time
from typing import Literal

from toolcell.core import ToolcellError
from toolcell.guard import AuditHead, AuditLog
from toolcell.guard.spi import AuditReport


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckState:
    """The state of the last check, as of one moment."""

    state: Literal["none", "running", "done", "failed"] = "none"
    checked: int = 0
    """Bytes that were checked."""

    total: int = 0
    """Bytes of the log; 0 until they are known."""

    anchors: int = 0
    """The number of heads that it is checked against."""

    began_at: float = 0.0
    ended_at: float = 0.0
    report: AuditReport | None = None
    error: str = ""
    """The reason why it could not be checked."""


class _StoppedError(Exception):
    pass


class AuditCheck:
    """Checks an audit log, one check at a time.

    Args:
        log: The log.
        clock: Returns seconds since 1970 (UTC).
    """

    def __init__(
        self,
        log: AuditLog,
        *,
        clock: Callable[[], float] = time,
    ) -> None:
        self._log = log
        self._clock = clock
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self.state = CheckState()
        """The state of the check that is under way, or of the last one."""

    def start(self, anchors: Iterable[AuditHead] = ()) -> bool:
        """Begin a check; return False if one is under way.

        Args:
            anchors: Heads that the log is checked against.
        """
        with self._starting:
            if self.state.state == "running":
                return False
            heads = list(anchors)
            self.state = CheckState(
                state="running", anchors=len(heads), began_at=self._clock()
            )
            self._thread = threading.Thread(
                target=self._run, args=(heads,), name="audit check", daemon=True
            )
            self._thread.start()
            return True

    def close(self) -> None:
        """End a check that is under way, and wait for its thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, anchors: list[AuditHead]) -> None:
        try:
            report = self._log.verify(anchors=anchors, on_progress=self._note)
        except _StoppedError:
            self._end(state="failed", error="the check was ended")
        except ToolcellError as error:
            self._end(state="failed", error=str(error))
        except Exception as error:  # noqa: BLE001 - nobody awaits a thread
            self._end(state="failed", error=type(error).__name__)
        else:
            self._end(state="done", report=report)

    def _note(self, checked: int, total: int) -> None:
        if self._stopped.is_set():
            raise _StoppedError
        self.state = replace(self.state, checked=checked, total=total)

    def _end(
        self,
        *,
        state: Literal["done", "failed"],
        report: AuditReport | None = None,
        error: str = "",
    ) -> None:
        self.state = replace(
            self.state,
            state=state,
            report=report,
            error=error,
            ended_at=self._clock(),
        )
