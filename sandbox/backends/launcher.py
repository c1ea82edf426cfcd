"""The host's end of a launcher, the process that makes cells on this machine.

Theory of operation. A launcher answers requests one by one. A launcher that has
answered nothing for ten seconds is killed, and its cells with it, as it may have been
stopped. It ends with its host, of which it has a pidfd: the control socket is not
enough, since a process that C code forks keeps it open.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import stat
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import anyio.to_thread

from toolcell.core import SandboxUnavailableError

from ..cell.kernel import gvisor
from ..machine.leases import lease
from ..machine.waited_socket import WaitedSocket
from .launcher_start import StartedLauncher, send_setup, take_launcher

_START_SECONDS = 20.0
_ANSWER_SECONDS = 10.0
_CHECK_SECONDS = 5.0
_END_SECONDS = 5.0
_KILL_SECONDS = 5.0
NAMESPACES_FIX = (
    "for namespaces set user.max_user_namespaces=10000, on Ubuntu also "
    "kernel.apparmor_restrict_unprivileged_userns=0, or start the container with "
    "--security-opt seccomp=unconfined --security-opt systempaths=unconfined "
    "--security-opt apparmor=unconfined"
)
_HINTS = {
    "namespaces": NAMESPACES_FIX,
    "Landlock": "for confined cells boot Linux 5.19 or newer (5.13 as root) with "
    "landlock among its security modules (lsm=landlock,...), and let a container's "
    "seccomp profile allow its calls",
    "user notification": "for confined cells boot Linux 5.19 or newer, and let a "
    "container's seccomp profile allow filters with a listener; or run this as root",
}
"""Remedies, by a word of the kernel's error."""

_GVISOR_HINT = (
    "inside a gVisor container cells need a newer runsc (20240729 is new enough); or "
    "ask for minimum_isolation='process' by name; or run toolcell outside of it and "
    "its cells in gVisor (runtime='runsc')"
)
_log = logging.getLogger(__name__)


class LauncherProcess:
    """One launcher process and its control socket.

    Requests are not concurrent: callers take turns, and an answer is matched by its id,
    so that one whose caller was cancelled is dropped and its cell killed.

    Args:
        started: Its process, and the host's end of its control socket.
    """

    def __init__(self, started: StartedLauncher) -> None:
        self._process, self._control = started
        self._waited = WaitedSocket(self._control)
        self._next_id = 0
        # When it was asked what it has not answered, if anything.
        self._silent_since: float | None = None
        self._killed = False

    @classmethod
    def spawn(cls, python: str) -> LauncherProcess:
        """Start a launcher process, unless one was started early.

        Raises:
            SandboxUnavailableError: The interpreter cannot be started.
        """
        return cls(take_launcher(python))

    @property
    def ended(self) -> bool:
        """True if the process has ended or was killed."""
        return self._killed or self._process.poll() is not None

    def set_up(self, message: bytes) -> None:
        """Have the launcher put up what all cells share, and make a first cell.

        Args:
            message: A `LauncherSetup`'s.
        """
        send_setup(self._control, message)

    async def wait_ready(self, refused: str) -> dict[str, Any]:
        """Wait until a launcher that was set up has done all that.

        Args:
            refused: The reason why an earlier one could not, if there was one.

        Returns:
            `level`, the isolation of its cells, and `why` it is not a stronger one.

        Raises:
            SandboxUnavailableError: The kernel refused, and the details `kernel` and
                `level` say what and at which level; a mount is not what was checked; it
                failed for a cause that may pass, as for want of memory; or nothing
                answered.
        """
        with anyio.move_on_after(_START_SECONDS):
            answer, _ = await self._receive()
            if "refused" in answer:
                raise SandboxUnavailableError(
                    answer["refused"], hint="mend the mount or the limit that it names"
                )
            if "error" not in answer:
                return answer
            why = "; ".join(filter(None, (refused, answer["error"])))
            level = answer.get("refused_level")
            if not level:
                raise SandboxUnavailableError(
                    f"no cell could be made: {why}",
                    hint="run it again when more memory, processes and open files are "
                    "free here; `toolcell doctor` tries a cell",
                )
            raise SandboxUnavailableError(
                f"this machine gives no cells: {why}",
                hint=_hint(why),
                details={"kernel": why, "level": level},
            )
        self._kill()
        raise SandboxUnavailableError(
            "the launcher did not start in time: its interpreter runs, and no cell was "
            f"made in {_START_SECONDS:g} seconds",
            hint="free CPU or memory here; `toolcell doctor` tries a cell",
        )

    async def launch(self, kind: dict[str, Any]) -> tuple[socket.socket, int, int]:
        """Make a cell; return its channel, and handle and pid of its first process.

        Raises:
            SandboxUnavailableError: The cell could not be made.
        """
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise SandboxUnavailableError(
                f"no socket for a cell: {error}",
                hint="raise the limit on open files: `ulimit -n`",
            ) from None
        lease(ours)
        try:
            with theirs:
                self._request({"cell": kind}, [theirs.fileno()])
            answer, fds = await self._answer(_ANSWER_SECONDS)
            if "error" in answer:
                raise SandboxUnavailableError(
                    f"cannot make a cell: {answer['error']}",
                    hint="run it again; if it stays so, see `toolcell doctor`",
                )
            if not fds:
                raise SandboxUnavailableError(
                    "this process has no descriptor left for a new cell",
                    hint="raise its limit on open files: `ulimit -n`",
                )
        except BaseException:
            # The cell, if it was made, ends with its channel.
            ours.close()
            raise
        return ours, fds[0], answer["pid"]

    async def check(self) -> None:
        """Raise SandboxUnavailableError if the launcher does not answer."""
        self._request({}, [])
        answer, _ = await self._answer(_CHECK_SECONDS)
        if "error" in answer:
            raise SandboxUnavailableError(
                answer["error"], hint="run it again; another launcher is started"
            )

    async def oom_kills(self, pid: int) -> int:
        """Return the number of OOM kills in a cell that has ended.

        Raises:
            SandboxUnavailableError: The launcher does not answer.
        """
        self._request({"ended": pid}, [])
        answer, _ = await self._answer(_CHECK_SECONDS)
        return int(answer.get("oom_kills", 0))

    def _request(self, request: dict[str, Any], fds: Sequence[int]) -> None:
        self._next_id += 1
        message = json.dumps({"id": self._next_id, **request}).encode()
        if self._silent_since is None:
            self._silent_since = anyio.current_time()
        try:
            socket.send_fds(self._control, [message], fds)
        except OSError as error:
            # It is gone, or has not read for long.
            self._kill()
            raise SandboxUnavailableError(
                f"the launcher is gone: {error}",
                hint="run it again; another launcher is started",
            ) from None

    async def _answer(self, seconds: float) -> tuple[dict[str, Any], list[int]]:
        """Return the answer to the last request.

        Args:
            seconds: The time limit. A launcher silent for ten seconds is killed.
        """
        now = anyio.current_time()
        silent_until = (self._silent_since or now) + _ANSWER_SECONDS
        with anyio.CancelScope(deadline=min(now + seconds, silent_until)):
            while True:
                answer, fds = await self._receive()
                if answer.get("id") == self._next_id:
                    return answer, fds
                # The answer to a request whose caller was cancelled.
                for fd in fds:
                    _kill(fd)
                    os.close(fd)
        if anyio.current_time() >= silent_until:
            self._kill()
        raise SandboxUnavailableError(
            f"the launcher has not answered for {seconds:g} seconds",
            hint="after ten it is killed with its cells; the next run starts another",
        )

    async def _receive(self) -> tuple[dict[str, Any], list[int]]:
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._control, 65_536, 1)
                break
            except BlockingIOError:
                await self._wait_readable()
            except ConnectionResetError:
                data, fds = b"", []
                break
        self._silent_since = None
        if not data:
            return {"error": "the launcher ended", "id": self._next_id}, []
        answer: dict[str, Any] = json.loads(data)
        return answer, fds

    async def _wait_readable(self) -> None:
        try:
            await self._waited.wait(anyio.wait_readable)
        except anyio.ClosedResourceError:
            raise SandboxUnavailableError(
                "the backend was closed", hint="open a new SandboxManager"
            ) from None

    def _kill(self) -> None:
        self._killed = True
        self._process.kill()

    async def aclose(self) -> None:
        """End the launcher and its cells; return when all are gone.

        A launcher that does not end in five seconds is killed, and abandoned after five
        more.
        """
        with anyio.CancelScope(shield=True):
            self._waited.close()
            for _ in range(2):
                if await self._ends():
                    return
                self._process.kill()
        _log.error("the launcher %d was killed and has not ended", self._process.pid)

    async def _ends(self) -> bool:
        """Wait for its end; return False if it has not come in five seconds."""
        if self._process.poll() is not None:
            return True
        with anyio.move_on_after(_END_SECONDS):
            await self._wait_for_end()
        return self._process.poll() is not None

    async def _wait_for_end(self) -> None:
        # With a time limit `Popen.wait` looks again and again, and late. Without one it
        # takes a thread, where the kernel has no pidfd.
        try:
            pidfd = os.pidfd_open(self._process.pid)
        except OSError:
            await anyio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
            return
        try:
            await anyio.wait_readable(pidfd)
        finally:
            os.close(pidfd)


class FirstProcess:
    """The first process of a cell.

    Args:
        handle: The process, as `cell/launcher/handles.py` has it; `kill` closes it.
        oom_kills: Returns the number of OOM kills in the cell. Once the process has
            ended, the launcher has removed what it left.
        leaves_some: True if it can leave processes, or files.
    """

    def __init__(
        self,
        handle: int,
        oom_kills: Callable[[], Awaitable[int]],
        *,
        leaves_some: bool,
    ) -> None:
        self._handle = handle
        self._oom_kills = oom_kills
        self._leaves_some = leaves_some

    async def killed_for_memory(self, known: int, since: float) -> bool:
        try:
            return await self._oom_kills() > known
        except SandboxUnavailableError:
            return False

    async def kill(self) -> None:
        _kill(self._handle)
        with anyio.move_on_after(_KILL_SECONDS) as timeout:
            await anyio.wait_readable(self._handle)
        if timeout.cancelled_caught:
            _log.error("a cell is lost: it was killed, and the kernel does not end it")
        if self._leaves_some:
            with contextlib.suppress(SandboxUnavailableError):
                await self._oom_kills()
        os.close(self._handle)


def _hint(error: str) -> str:
    """Return what would help against a launcher's error."""
    if gvisor.is_this_kernel():
        return _GVISOR_HINT
    found = [text for layer, text in _HINTS.items() if layer in error]
    return "; or ".join([*found, "use Docker, or `toolcell doctor` lists all layers"])


def _kill(handle: int) -> None:
    if stat.S_ISSOCK(os.fstat(handle).st_mode):
        # The launcher kills it.
        with contextlib.suppress(BrokenPipeError):
            os.write(handle, b"!")
        return
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
