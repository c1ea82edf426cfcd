"""Signals to processes of the same cell, where Landlock does not bound them.

A process is held by a pidfd before its parents are looked at, so that the signal goes
to no later process of the same id. A signal to the caller's own process, or to a thread
of it, is left to the kernel: the arguments are numbers, and that process lives.
"""

from __future__ import annotations

import ctypes
import errno
import os

from ..kernel import linux
from .caller import GO_ON, failed, signed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .caller import Act, Caller

_PIDFD_SEND_SIGNAL, _TGKILL = 424, {"x86_64": 234, "aarch64": 131}
_EVERYBODY = 1
"""As a group: `kill` of -1 means no group."""

_libc = ctypes.CDLL(None, use_errno=True)


class Signals:
    """Does the calls that send signals.

    Args:
        supervisor: The process whose descendants are the cell.
    """

    def __init__(self, supervisor: int) -> None:
        self._supervisor = supervisor

    def kill(self, caller: Caller, *arguments: int) -> Act:
        target, number, own = signed(arguments[0]), signed(arguments[1]), caller.process
        if target == own:
            return lambda: GO_ON
        if target > 0:
            return lambda: self._send([target], number)
        group = os.getpgid(own) if target == 0 else -target
        return lambda: self._send(_group(group, but=own), number)

    def tkill(self, caller: Caller, *arguments: int) -> Act:
        thread, number = signed(arguments[0]), signed(arguments[1])
        own = caller.process
        if thread == caller.thread:
            return lambda: GO_ON
        if os.path.exists(f"/proc/{own}/task/{thread}"):
            return lambda: _signal_thread(own, thread, number)
        return lambda: self._send([thread], number)

    def tgkill(self, caller: Caller, *arguments: int) -> Act:
        process, thread, number = map(signed, arguments[:3])
        if process == caller.process:
            return lambda: GO_ON
        if process != thread:
            # No program signals single threads of others, but debuggers.
            raise failed(errno.EPERM)
        return lambda: self._send([process], number)

    def _send(self, processes: list[int], number: int) -> None:
        """Send a signal to those that it may reach; fail if there are none."""
        outcomes = {self._send_to(process, number) for process in processes}
        if 0 not in outcomes:
            raise failed(min(outcomes, default=errno.ESRCH))

    def _send_to(self, process: int, number: int) -> int:
        """Send a signal to a process of the cell; return 0 or an error."""
        try:
            held = linux.pidfd_open(process)
        except OSError as error:
            return errno.ESRCH if error.errno == errno.EINVAL else error.errno or 0
        try:
            if not self._is_of_cell(process):
                return errno.EPERM
            long = ctypes.c_long
            call = long(_PIDFD_SEND_SIGNAL), long(held), long(number), long(0), long(0)
            return ctypes.get_errno() if _libc.syscall(*call) else 0
        finally:
            os.close(held)

    def _is_of_cell(self, process: int) -> bool:
        """Return True for a descendant of the supervisor that is a program.

        The parents are read twice: one that was still the parent the second time was
        not replaced by another process before its own parent was read.
        """
        try:
            parents = _parents(process, self._supervisor)
            return (
                self._supervisor in parents[1:]
                and parents == _parents(process, self._supervisor)
                and _filters(process) > _filters(self._supervisor)
            )
        except (OSError, ValueError):
            return False


def _parents(process: int, until: int) -> list[int]:
    """Return a process, its parent, and so on until a given one."""
    found = [process]
    while found[-1] > 1 and found[-1] != until:
        found.append(int(_stat(found[-1])[1]))
    return found


def _filters(process: int) -> int:
    """Return the number of a process's filters: a program has one more than we."""
    with open(f"/proc/{process}/status", encoding="utf-8") as file:
        return int(file.read().partition("\nSeccomp_filters:")[2].split()[0])


def _stat(process: int) -> list[str]:
    """Return the fields behind a process's name: its state, parent, group, ..."""
    with open(f"/proc/{process}/stat", "rb") as file:
        return file.read().decode("ascii", "replace").rpartition(")")[2].split()


def _group(group: int, *, but: int) -> list[int]:
    """Return the members of a process group: one comes last, as this may kill it."""
    everybody = group == _EVERYBODY
    members = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if everybody or int(_stat(int(name))[2]) == group:
                members.append(int(name))
        except (OSError, ValueError):
            continue
    others = [process for process in members if process != but]
    return others if everybody or but not in members else [*others, but]


def _signal_thread(process: int, thread: int, number: int) -> None:
    long = ctypes.c_long
    call = long(_TGKILL[os.uname().machine]), long(process), long(thread), long(number)
    if _libc.syscall(*call):
        raise failed(ctypes.get_errno())
