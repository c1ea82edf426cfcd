"""The limits of a cell between its runs, where the kernel does not hold them."""

from __future__ import annotations

from ..kernel import process_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..accounting.disk import DiskWatch
    from ..accounting.usage import ResourceAccounting
    from ..processes.pause import Pause
    from ..processes.relay import ProcessRelay
    from .branches import Branches


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
        if not self._accounting.watches_memory or self._pause.seconds:
            return False
        return bool(self._processes.pid or self._branches.living())

    def keep(self) -> float | None:
        """End what takes too much; return the milliseconds to the next look, if any."""
        due = []
        if self.watches:
            self._accounting.keep_memory()
            due.append(self._accounting.memory_check_in() * 1000)
        if self._disk is not None and self._has_commands and not self._pause.seconds:
            if self._disk.exceeded():
                self._processes.forward({"type": "exec_full"}, b"", {}, -1)
                self._disk.begin()
            due.append(self._disk.due_in() * 1000)
        return min(due, default=None)

    @property
    def _has_commands(self) -> bool:
        """True while a command runs, or what one has left behind."""
        server = self._processes.pid
        return bool(server and process_tree.children(server))
