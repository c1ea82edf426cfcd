"""Kills and collects the processes of a cell that no run and no branch needs."""

from __future__ import annotations

import os
import select
import signal
import time

from ..kernel import process_tree
from .child import drain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..accounting.usage import ResourceAccounting
    from .child import Child
    from .run import Run


_KILL_AGAIN_SECONDS = 0.01
# After this a program that forks faster than it is killed costs the cell all processes.
_KILL_SECONDS = 1.0


class Reaper:
    """Ends processes, so that no run finds one of an earlier run.

    Where every process of the cell is below this one all can be killed at once. Else
    only the process group of a program is.

    Args:
        accounting: Lists the children of this process.
        wake_fd: Readable, and not blocking, when a child may have ended.
        adopts: True if every process of the cell is below this one.
    """

    def __init__(
        self, accounting: ResourceAccounting, wake_fd: int, adopts: bool
    ) -> None:
        self._accounting = accounting
        self._wake_fd = wake_fd
        self._adopts = adopts
        self.pending = False
        """True if processes were killed that may not have ended yet."""

    def kill_run(self, child: Child, run: Run, known: set[int]) -> None:
        """Kill every process of a run and wait until no program is left.

        Args:
            child: The program's process.
            run: The run; its program lives on if the run is `kept`.
            known: Processes that outlive the run.
        """
        alone = not known and not run.kept
        give_up = time.monotonic() + _KILL_SECONDS
        while True:
            try:
                if not self._adopts:
                    if not run.ended:
                        os.killpg(child.pid, signal.SIGKILL)
                elif alone or time.monotonic() > give_up:
                    process_tree.signal_others(signal.SIGKILL)
                else:
                    strays = run.strays(known)
                    if run.is_over and not strays:
                        return
                    for pid in strays:
                        os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
            if run.reap() or (run.is_over and not run.strays(known)):
                return
            self._wait_for_an_end()

    def kill_strays(self, known: set[int]) -> None:
        """Kill every child that is not in `known`, and wait until all have ended."""
        while not self.kill_once(known):
            self._wait_for_an_end()

    def kill_once(self, known: set[int]) -> bool:
        """Kill every child that is not in `known`; True if none of them is left."""
        self.pending = not self._try_once(known)
        return not self.pending

    def _try_once(self, known: set[int]) -> bool:
        left = [pid for pid in self._accounting.children() if pid not in known]
        for pid in left:
            if self._adopts:
                os.kill(pid, signal.SIGKILL)
        try:
            while left and os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        return not left

    def _wait_for_an_end(self) -> None:
        select.select([self._wake_fd], [], [], _KILL_AGAIN_SECONDS)
        drain(self._wake_fd)
