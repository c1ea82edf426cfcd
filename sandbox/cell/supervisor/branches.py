"""The interpreters of a session that keep state: its first one and its forks."""

from __future__ import annotations

import json
import os
import select
import socket
import time

from ..kernel.descriptors import send_fds
from ..program.main import Pipes
from ..wire.contract import BRANCHES, FORK
from ..wire.frames import strict_json
from ..workdir.path_steps import FileProblem, acting_as, open_folder
from .child import Child, open_pipes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..accounting.disk import DiskWatch
    from ..accounting.usage import ResourceAccounting


_FORK_SECONDS = 30.0
_MAX_REPLY_BYTES = 64 * 1024
_MAX_WARNINGS = 100


class Branches:
    """Processes that keep state between runs, by the name of their branch.

    Args:
        tmp: The folder that holds the work dirs of forks.
        uid: The programs' user; None for that of this process.
        disk: Measures `tmp`; None if its file system has a bound.
    """

    def __init__(self, tmp: str, uid: int | None, disk: DiskWatch | None) -> None:
        self._tmp, self._uid, self._disk = tmp, uid, disk
        self._children: dict[str, Child] = {}
        self._running: tuple[str, str] | None = None
        self._made = 0

    def living(self) -> set[int]:
        """Return the pids that the end of a run must not kill."""
        return {child.pid for child in self._children.values()}

    def note_loss(self, pid: int, why: str) -> None:
        """Have `take` give this reason for the end of a process."""
        for child in self._children.values():
            if child.pid == pid:
                child.lost = why

    def take(self, name: str | None) -> tuple[Child | None, str | None]:
        """Remove and return a branch's process, or the reason why it is gone."""
        child = self._children.pop(name or "", None)
        if child is None or not _has_ended(child.pid):
            if name and child is not None:
                self._running = name, child.folder
            return child, None
        child.close()
        return None, child.lost

    def give_back(
        self, name: str | None, child: Child, workdir: str, *, kept: bool
    ) -> None:
        """End the run of a branch; keep its process, if the state is kept."""
        self._running = None
        if name and kept:
            child.folder = child.folder or workdir
            self._children[name] = child

    def folder(self, name: str) -> str:
        """Return the work dir of a branch; empty if the branch is not known."""
        if self._running is not None and self._running[0] == name:
            return self._running[1]
        child = self._children.get(name)
        return child.folder if child is not None else ""

    def drop(self, name: str) -> None:
        """Forget a branch; its process becomes a stray and is killed."""
        child = self._children.pop(name, None)
        if child is not None:
            child.close()

    def fork(
        self, request: dict[str, Any], accounting: ResourceAccounting, taken: set[int]
    ) -> dict[str, Any]:
        """Fork one branch into another; return the fields of the answer to the host.

        The pid that the fork announces is the program's claim, so it is accepted only
        if it is a child of this process and belongs to nothing else.

        Args:
            request: The header of the host's request.
            accounting: Lists the children of this process, and watches their memory.
            taken: Children that are already accounted for.
        """
        source = self._children.get(request["branch"])
        if source is None:
            return {
                "error": "there is no state to fork: nothing has run, or it was lost"
            }
        if not self._has_room(source.folder):
            return {"error": "the disk has no room for a copy of the work dir"}
        self._made += 1
        wanted = {
            "from": source.folder,
            "to": f"{self._tmp}/{BRANCHES}/{self._made}",
            "allow_threads": request["allow_threads"],
        }
        child, pipes = open_pipes(self._uid)
        try:
            _ask(source, wanted, pipes)
        except OSError:
            child.close()
            return {"error": "the process to fork is gone"}
        finally:
            pipes.close()
        reply = _read_reply(child.result, accounting)
        free = set(accounting.children()) - taken
        if "error" in reply or reply.get("pid") not in free:
            child.close()
            return {"error": str(reply.get("error", "the fork did not answer"))[:1000]}
        child.pid, child.setup = reply["pid"], source.setup
        child.folder, child.cpu_seconds = wanted["to"], 0.0
        self._children[request["to"]] = child
        return {"warnings": reply["warnings"]}

    def _has_room(self, folder: str) -> bool:
        if self._disk is None:
            return True
        try:
            with acting_as(self._uid):
                opened = open_folder(folder, [])
        except (OSError, FileProblem):
            # The program has closed or replaced it; its copy says so.
            return True
        return self._disk.fits(opened, self._tmp)


def _has_ended(pid: int) -> bool:
    try:
        return bool(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    except ChildProcessError:
        return True


def _ask(source: Child, wanted: dict[str, Any], pipes: Pipes) -> None:
    if not source.write_queue.flush(_FORK_SECONDS):
        raise TimeoutError
    os.write(source.request, FORK)
    fds = [pipes.stdout, pipes.stderr, pipes.result, pipes.request]
    sock = socket.socket(fileno=source.request)
    try:
        send_fds(sock, json.dumps(wanted).encode(), fds)
    finally:
        sock.detach()


def _read_reply(result_fd: int, accounting: ResourceAccounting) -> dict[str, Any]:
    """Wait for a new branch's first line, which the program could forge."""
    until = time.monotonic() + _FORK_SECONDS
    while not select.select([result_fd], [], [], accounting.memory_check_in())[0]:
        if time.monotonic() > until:
            return {"error": "the fork took too long"}
        accounting.keep_memory()
    try:
        reply = strict_json(os.read(result_fd, _MAX_REPLY_BYTES))
        if type(reply.get("pid", 0)) is not int:
            raise TypeError
        warnings = [str(warning)[:500] for warning in reply.get("warnings", [])]
        return {**reply, "warnings": warnings[:_MAX_WARNINGS]}
    except (ValueError, TypeError, AttributeError, BlockingIOError):
        return {"error": "the fork failed"}
