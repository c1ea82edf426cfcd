"""The limits of a cell between its runs, where the kernel does not hold them."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from ..kernel import process_tree
from ..wire.channel import HostGone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..accounting.disk import DiskWatch
    from ..accounting.usage import ResourceAccounting
    from ..processes.pause import Pause
    from ..processes.relay import ProcessRelay
    from .branches import Branches

# Time that commands have to end before it counts as growth that they write on.
_END_SECONDS = 0.2
_LOOK_SECONDS = 0.002


class IdleLimits:
    """Ends what takes too much of a cell while nothing is run in it.

    Args:
        accounting: Watches memory, where no cgroup holds it.
        disk: Watches files; None where their file systems have bounds.
        branches: Interpreters that keep state.
        processes: Leads to the commands.
        pause: While it lasts nothing takes more.
    """

    def __init__(
        self,
        accounting: ResourceAccounting,
        disk: DiskWatch | None,
        branches: Branches,
        processes: ProcessRelay,
        pause: Pause,
    ) -> None:
        self._accounting = accounting
        self._disk = disk
        self._branches = branches
        self._processes = processes
        self._pause = pause

    @property
    def watches(self) -> bool:
        """True if `keep` has to be called again and again."""
        if self._pause.seconds:
            return False
        watched = self._accounting.watches_memory or self._disk is not None
        return watched and bool(self._processes.pid or self._branches.living())

    def begin(self) -> None:
        """Begin after a run. If the disk was full beside it, end the commands, too.

        Raises:
            HostGone: As for `keep`.
        """
        if self._disk is not None and self._disk.is_full:
            self._end_commands(self._disk)

    def keep(self) -> float | None:
        """End what takes too much; return the milliseconds to the next look, if any.

        Raises:
            HostGone: The disk was full, and filled all the same: all of the cell ends.
        """
        if not self.watches:
            return None
        due = []
        if self._accounting.watches_memory:
            self._accounting.keep_memory()
            due.append(self._accounting.memory_check_in() * 1000)
        at_rest = not self._has_commands
        if self._disk is not None and (self._branches.living() or not at_rest):
            if self._disk.exceeded(at_rest=at_rest):
                if at_rest:
                    self._end_interpreters()
                self._end_commands(self._disk)
            due.append(self._disk.due_in(at_rest=at_rest) * 1000)
        return min(due, default=None)

    @property
    def _has_commands(self) -> bool:
        """True while a command runs, or what one has left behind."""
        server = self._processes.pid
        return bool(server and process_tree.children(server))

    def _end_interpreters(self) -> None:
        """End the interpreters of a session whose disk is full, and what they left."""
        # The number of one that was collected may be a stranger's by now.
        for child in self._branches.living().intersection(self._accounting.children()):
            self._branches.note_loss(child, "the disk was full")
            for pid in (child, *process_tree.descendants(child)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _end_commands(self, disk: DiskWatch) -> None:
        """End the commands of a cell whose disk is full; what is there may stay."""
        self._processes.forward({"type": "exec_full"}, b"", {}, -1)
        until = time.monotonic() + _END_SECONDS
        while self._has_commands and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
        disk.begin()
        if disk.is_lost:
            raise HostGone
