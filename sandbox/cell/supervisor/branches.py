"""The interpreters of a session that live on: its main line and its forks."""

from __future__ import annotations

import json
import os
import select
import socket

from ..kernel.descriptors import send_fds
from ..program import main as runner
from ..wire.contract import BRANCHES, FORK
from ..wire.frames import strict_json
from .run import Child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .accounting import ResourceAccounting


_FORK_SECONDS = 30.0
_MAX_REPLY_BYTES = 64 * 1024
_MAX_WARNINGS = 100


class Branches:
    """Named processes that keep state between runs."""

    def __init__(self) -> None:
        self._children: dict[str, Child] = {}
        self._made = 0

    def living(self) -> set[int]:
        """Return the processes that runs of others must leave alone."""
        return {child.pid for child in self._children.values()}

    def take(self, name: str | None) -> tuple[Child | None, str | None]:
        """Return a branch's process if it lives, else why it does not, if it did."""
        child = self._children.pop(name or "", None)
        if child is None or not _has_ended(child.pid):
            return child, None
        child.close()
        return None, "its process ended between runs"

    def keep(self, name: str, child: Child, workdir: str) -> None:
        """Have a process live on under a name."""
        child.folder = child.folder or workdir
        self._children[name] = child

    def folder(self, name: str) -> str:
        """Return the work dir of a branch; empty if it has none of its own."""
        child = self._children.get(name)
        return child.folder if child is not None else ""

    def drop(self, name: str) -> None:
        """Forget a branch; its process is nobody's then."""
        child = self._children.pop(name, None)
        if child is not None:
            child.close()

    def fork(
        self, request: dict[str, Any], accounting: ResourceAccounting, taken: set[int]
    ) -> dict[str, Any]:
        """Fork one branch into another; return what the host should know.

        Args:
            request: What the host asked for.
            accounting: Lists the processes that there are.
            taken: Those that are somebody's already.
        """
        source = self._children.get(request["branch"])
        if source is None:
            return {
                "error": "there is no state to fork: nothing has run, or it was lost"
            }
        self._made += 1
        wanted = {
            "from": source.folder,
            "to": f"{BRANCHES}/{self._made}",
            "allow_threads": request["allow_threads"],
        }
        child, pipes = open_pipes()
        try:
            _ask(source, wanted, pipes)
        except OSError:
            child.close()
            return {"error": "the process to fork is gone"}
        finally:
            pipes.close()
        reply = _read_reply(child.result)
        free = set(accounting.children()) - taken
        if "error" in reply or reply.get("pid") not in free:
            child.close()
            return {"error": str(reply.get("error", "the fork did not answer"))[:1000]}
        child.pid, child.setup = reply["pid"], source.setup
        child.folder, child.cpu_seconds = wanted["to"], 0.0
        self._children[request["to"]] = child
        return {"warnings": reply["warnings"]}


def open_pipes() -> tuple[Child, runner.Pipes]:
    """Return both ends of what leads to a process that is yet to be made."""
    request = [end.detach() for end in socket.socketpair()]
    stdout_r, stdout_w = os.pipe()
    stderr_r, stderr_w = os.pipe()
    result_r, result_w = (end.detach() for end in socket.socketpair())
    for fd in (request[0], stdout_r, stderr_r, result_r):
        os.set_blocking(fd, False)
    child = Child(0, request[0], stdout_r, stderr_r, result_r)
    return child, runner.Pipes(request[1], stdout_w, stderr_w, result_w)


def _has_ended(pid: int) -> bool:
    try:
        return bool(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    except ChildProcessError:
        return True


def _ask(source: Child, wanted: dict[str, Any], pipes: runner.Pipes) -> None:
    if not source.write_queue.flush(_FORK_SECONDS):
        raise TimeoutError
    os.write(source.request, FORK)
    fds = [pipes.stdout, pipes.stderr, pipes.result, pipes.request]
    sock = socket.socket(fileno=source.request)
    try:
        send_fds(sock, json.dumps(wanted).encode(), fds)
    finally:
        sock.detach()


def _read_reply(result_fd: int) -> dict[str, Any]:
    """Wait for the first line of a new branch, which the program could forge."""
    if not select.select([result_fd], [], [], _FORK_SECONDS)[0]:
        return {"error": "the fork took too long"}
    try:
        reply = strict_json(os.read(result_fd, _MAX_REPLY_BYTES))
        if type(reply.get("pid", 0)) is not int:
            raise TypeError
        warnings = [str(each)[:500] for each in reply.get("warnings", [])]
        return {**reply, "warnings": warnings[:_MAX_WARNINGS]}
    except (ValueError, TypeError, AttributeError, BlockingIOError):
        return {"error": "the fork failed"}
