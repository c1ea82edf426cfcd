"""Tries cells, so that a sick node says so before runs fail there."""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio

from toolcell.core import ToolcellError
from toolcell.sandbox import Sandbox

CHECK_SECONDS = 30.0
"""Default seconds between two tries."""

TRY_SECONDS = 4.0
"""Seconds of one try. When they are over it has failed."""

# With it and two tries a node whose cells hang is sick after ten seconds.
_AGAIN_SECONDS = 1.0
_FAILURES = 2
_GOOD = 3
_log = logging.getLogger(__name__)


class Health:
    """Knows whether cells can be made on this node.

    A try runs a small program, or, while all cells are in use, asks the backend.

    Args:
        sandbox: The node's sandbox.
        seconds: Seconds between two tries; a tenth of them while it is sick, and one
            at most after the first failure.
    """

    def __init__(self, sandbox: Sandbox, seconds: float) -> None:
        self._sandbox = sandbox
        self._seconds = seconds
        self._bad = 0
        self._good = 0
        self.why: ToolcellError | None = None
        """The reason of the last failure, as the sandbox says it; None: it passed."""

        self.is_sick = False
        """True from the second failure in a row to the third good try."""

    async def watch(self, on_change: Callable[[], None]) -> None:
        """Try for ever; call a function when the node falls sick or is well again."""
        while True:
            await anyio.sleep(self._pause())
            before = self.is_sick
            self._note(good=await self._try())
            if self.is_sick != before:
                _log.warning("the node is %s", "sick" if self.is_sick else "well again")
                on_change()

    def _pause(self) -> float:
        if self.is_sick:
            return self._seconds / 10
        return min(self._seconds / 10, _AGAIN_SECONDS) if self._bad else self._seconds

    def _note(self, *, good: bool) -> None:
        self._bad, self._good = (0, self._good + 1) if good else (self._bad + 1, 0)
        if self._bad >= _FAILURES:
            self.is_sick = True
        elif self._good >= _GOOD:
            self.is_sick = False

    async def _try(self) -> bool:
        sandbox = self._sandbox
        try:
            with anyio.fail_after(TRY_SECONDS):
                if sandbox.active_cells < sandbox.config.max_concurrency:
                    good = (await sandbox.run("6 * 7")).value == 42
                else:
                    await sandbox.check()
                    good = True
            self.why = None
            return good
        except (ToolcellError, TimeoutError) as error:
            self.why = error if isinstance(error, ToolcellError) else None
            _log.warning("no cell could be made: %s", type(error).__name__)
            return False
