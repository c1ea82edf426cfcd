"""The process that programs of a cell are forked from: it never held one.

A fork is a copy of its parent's memory, and the supervisor's holds what hosts send: the
code of programs, their inputs, their reports. So where a cell runs several programs
they are forked from a process that the supervisor makes before it reads of the first,
and that is asked nothing but to fork. What a program gets comes over its own socket.

The supervisor is the parent of each, to collect it: they are cloned as siblings of the
zygote. Under gVisor they are its children all the same. There the zygote leaves its
work to a fork of itself and ends, and the kernel makes both the supervisor's.
"""

from __future__ import annotations

import os
import select
import socket

from ..kernel import confine, landlock, linux, signals
from ..kernel.descriptors import keep_only, receive_fds, send_fds
from ..program import main as runner
from ..wire.contract import MOUNTS, SHARED_FOLDERS
from .network_namespace import NetworkNamespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


_FORK = b"f"
_FORK_ANEW = b"n"
_MAX_ANSWER_BYTES = 40
_FORK_SECONDS = 30.0
"""Seconds in which the zygote forks. When they have passed a program has stopped it,
and the cell ends."""


class Zygote:
    """The supervisor's end of the process that programs are forked from.

    Args:
        settings: The confinement of every program of the cell.
        oom_score: As in `confine.fork_first_to_go`.
    """

    def __init__(self, settings: dict[str, Any], oom_score: int | None) -> None:
        self._socket, theirs = socket.socketpair()
        self.pid = confine.fork_first_to_go(oom_score)
        """Its process."""

        if self.pid == 0:
            _serve(theirs, settings)
        theirs.close()
        self._socket.settimeout(_FORK_SECONDS)
        self._reach = _reach(settings)
        self._rules = self._reach.rules().fd if self._reach else -1

    def is_gone(self) -> bool:
        """Return True if it has ended: it says nothing unless it is asked."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def fork(self, pipes: runner.Pipes, *, anew: bool) -> int:
        """Fork the process of a program; return its pid.

        Args:
            pipes: The program's ends of its pipes.
            anew: True if it must not share namespaces with an earlier program.

        Raises:
            OSError: No process can be forked.
        """
        if anew:
            self._renew_rules()
        fds = [pipes.stdout, pipes.stderr, pipes.result, pipes.request]
        fds += [self._rules] if self._reach else []
        send_fds(self._socket, _FORK_ANEW if anew else _FORK, fds)
        answer = self._socket.recv(_MAX_ANSWER_BYTES)
        if not answer:
            raise OSError("the process that forks is gone")
        pid, successor = map(int, answer.split())
        if successor:
            os.waitpid(self.pid, 0)
            self.pid = successor
        return pid

    def _renew_rules(self) -> None:
        """Make those of the next programs: file systems are new.

        The zygote could, but each page that it writes to is copied after each fork.

        Raises:
            OSError: The kernel refused.
        """
        if self._reach:
            old, self._rules = self._rules, self._reach.rules().fd
            os.close(old)


def _serve(door: socket.socket, settings: dict[str, Any]) -> NoReturn:
    """Fork whenever the supervisor says so, until it is gone."""
    try:
        signals.forget_parent()
        keep_only(
            {
                door.fileno(),
                *(settings[each] for each in ("rules", "notifier", "network")),
                *(path for path, _ in settings["paths"]),
            }
        )
        settings = {**settings, "keepers": [*settings["keepers"], os.getpid()]}
        confine.get_ready(settings)
        network = NetworkNamespace() if settings["renews"] == MOUNTS else None
        while True:
            order, fds = receive_fds(door, 1, 5)
            if not order:
                break
            if order == _FORK_ANEW and network is not None:
                linux.unshare(linux.CLONE_NEWIPC)
                network = network.renewed(settings["network"])
            stdout, stderr, result, request, *rules = fds
            if rules:
                [settings["rules"]] = rules
            pipes = runner.Pipes(request, stdout, stderr, result)
            pid = linux.clone(linux.CLONE_PARENT)
            if pid == 0:
                runner.start(pipes, settings)
            pipes.close()
            for fd in rules:
                os.close(fd)
            successor = os.fork() if _is_own_child(pid) else -1
            if successor:
                door.send(b"%d %d" % (pid, max(successor, 0)))
            if successor > 0:
                break
    finally:
        os._exit(0)


def _reach(settings: dict[str, Any]) -> landlock.Reach | None:
    """Return what programs may reach, if their rules are not those of the cell."""
    if not settings["reach"]:
        return None
    return landlock.Reach(settings["reach"], (settings["workdir"], *SHARED_FOLDERS))


def _is_own_child(pid: int) -> bool:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return False
    return True
