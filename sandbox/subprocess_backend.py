"""Cells made of Linux namespaces, without any daemon.

Theory of operation. One launcher process (`cell/launcher.py`) per backend makes
the cells. The host gives it a socket for each new cell and gets back a pidfd of
the cell's first process. Killing that process makes the kernel kill the whole
PID namespace, and the pidfd becomes readable only when nothing of it is left.
The launcher, and with it every cell, ends when the host's end of its control
socket closes, however that happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from typing import Any

import anyio
import anyio.to_thread

from toolcell.core import SandboxUnavailableError

from . import host_cgroups, layers, mounts
from .bundle import ENVIRONMENT, bundle, command, compiled_bundle
from .cell_client import (
    CELL_UID,
    WORKDIR,
    Cell,
    CellTraits,
    cell_environment,
)
from .channel import Channel
from .config import Enforcer, Limits, SandboxConfig

_NAMESPACE_LAYERS = ("user", "mount", "pid", "net", "ipc", "uts", "private_root")
_REQUIRED = ("no_capabilities", "no_new_privileges", "seccomp")
_SHOWN = (
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/bin",
    "/usr/sbin",
    "/usr/include",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/share/zoneinfo",
    "/usr/share/terminfo",
    "/usr/share/python3",
    "/usr/share/nodejs",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    # The public certificates of the system, for programs that may reach out.
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/usr/share/ca-certificates",
    "/etc/localtime",
    "/etc/mime.types",
)
_NODE = "/node/bin/node"
_START_SECONDS = 20.0
_END_SECONDS = 5.0


class SubprocessBackend:
    """Makes cells out of namespaces on this machine (Linux 5.4 or newer)."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._launcher: Launcher | None = None
        self._lock = anyio.Lock()
        self._cgroups: dict[str, str] = {}
        self._why_no_cgroups = ""

    @property
    def traits(self) -> CellTraits:
        held = bool(self._cgroups)
        enforced: dict[str, Enforcer] = {
            "wall_seconds": "watchdog",
            "cpu_seconds": "watchdog",
            "output_bytes": "watchdog",
            "open_files": "rlimit",
            "cpus": "cgroup" if held else "affinity",
            "memory_mb": "cgroup" if held else "watchdog",
            "pids": "cgroup" if held else "rlimit",
        }
        layers = (*_NAMESPACE_LAYERS, "cgroup") if held else _NAMESPACE_LAYERS
        return CellTraits(
            backend="subprocess",
            level="namespaces",
            layers=layers,
            enforced_by=enforced,
            required_layers=_REQUIRED,
        )

    @property
    def why_no_cgroups(self) -> str:
        """Why cells have no cgroup of their own; empty if they have one."""
        return self._why_no_cgroups

    async def start(self) -> None:
        """Sweep orphans, start the launcher and make one cell to see that it works."""
        if sys.platform != "linux":
            raise SandboxUnavailableError(
                f"there are no namespaces on {sys.platform}",
                hint="install Docker, or ask for minimum_isolation='process' by name",
            )
        await anyio.to_thread.run_sync(host_cgroups.sweep)
        try:
            self._cgroups = host_cgroups.create()
        except OSError as error:
            self._why_no_cgroups = str(error)
        try:
            self._launcher = await self._start_launcher()
        except BaseException:
            await self.close()
            raise

    async def _start_launcher(self) -> Launcher:
        python = self._config.python or interpreter()
        show = shown_paths(python)
        binds = mounts.follow(mount.bind for mount in self._config.mounts)
        mounts.keep_clear_of(binds, show)
        binds += [*layers.store_binds(self._config), *node_binds(self._config.node)]
        launcher = Launcher.spawn(python)
        try:
            await launcher.set_up(
                {
                    "cell_uid": CELL_UID,
                    "workdir": WORKDIR,
                    "show": show,
                    "mounts": binds,
                    "cgroups": self._cgroups,
                    "cell": self._kind(self._config.limits),
                }
            )
        except BaseException:
            await launcher.close()
            raise
        return launcher

    async def check(self) -> None:
        async with self._lock:
            await self._living_launcher()

    async def _living_launcher(self) -> Launcher:
        """Return the launcher; one that was killed took only its own cells with it."""
        if self._launcher is None:
            raise SandboxUnavailableError("the backend is closed")
        if self._launcher.ended:
            await self._launcher.close()
            await self._renew_cgroups()
            self._launcher = await self._start_launcher()
        return self._launcher

    async def _renew_cgroups(self) -> None:
        if not self._cgroups:
            return
        await anyio.to_thread.run_sync(host_cgroups.remove, self._cgroups)
        try:
            self._cgroups = host_cgroups.create()
        except OSError as error:
            raise SandboxUnavailableError(
                f"the cgroups that held the cells cannot be made again: {error}",
                hint="`toolcell doctor` says how to get cgroups",
            ) from None

    async def create_cell(self, limits: Limits) -> Cell:
        async with self._lock:
            launcher = await self._living_launcher()
            sock, pidfd = await launcher.launch(self._kind(limits))
        # Its supervisor has its settings from the launcher.
        return Cell(Channel(sock), NamespaceProcess(pidfd), self.traits, {})

    def _kind(self, limits: Limits) -> dict[str, Any]:
        """Return what makes cells alike: the launcher keeps one of a kind ahead."""
        own = limits.model_dump(include={"disk_mb", "memory_mb", "pids", "cpus"})
        return {"limits": own, "settings": self._settings(limits)}

    def _settings(self, limits: Limits) -> dict[str, Any]:
        rlimits = {"core": 0, "open_files": limits.open_files}
        if not self._cgroups:
            rlimits["processes"] = limits.pids
        return {
            "uid": CELL_UID,
            "workdir": WORKDIR,
            "env": cell_environment(self._config.env, WORKDIR),
            "node": _NODE,
            "rlimits": rlimits,
            "address_space": 0 if self._cgroups else limits.memory_mb << 20,
            "affinity": 0 if self._cgroups else limits.cpus,
            "require": list(_REQUIRED),
        }

    async def close(self) -> None:
        launcher, self._launcher = self._launcher, None
        if launcher is not None:
            await launcher.close()
        cgroups, self._cgroups = self._cgroups, {}
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(host_cgroups.remove, cgroups)


class Launcher:
    """The host's end of one launcher process."""

    def __init__(
        self, process: subprocess.Popen[bytes], control: socket.socket, code: bytes
    ) -> None:
        self._process = process
        self._control = control
        self._code = code
        self._next_id = 0

    @classmethod
    def spawn(cls, python: str) -> Launcher:
        """Start a launcher process.

        Raises:
            SandboxUnavailableError: The interpreter cannot be started.
        """
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise SandboxUnavailableError(
                f"no socket for the launcher: {error}"
            ) from None
        try:
            process = subprocess.Popen(  # noqa: S603 - our own command, no shell
                command(python, "launcher", theirs.fileno(), site=False),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise SandboxUnavailableError(
                f"cannot start the interpreter {python}: {error.strerror}",
                hint="set `python` to an interpreter that this user may run",
            ) from None
        finally:
            theirs.close()
        ours.setblocking(False)
        code = compiled_bundle() if python == interpreter() else bundle()
        return cls(process, ours, code)

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    async def set_up(self, setup: dict[str, Any]) -> None:
        """Have the root built.

        Raises:
            SandboxUnavailableError: The kernel refused, a mount is not what was
                checked, or nothing answered.
        """
        with anyio.move_on_after(_START_SECONDS):
            await self._send_code()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._control.send(json.dumps(setup).encode())
            answer, _ = await self._receive()
            if "refused" in answer:
                raise SandboxUnavailableError(answer["refused"])
            if "error" not in answer:
                return
            raise SandboxUnavailableError(
                f"this machine gives no namespaces: {answer['error']}",
                hint="`toolcell doctor` lists what is missing and how to get it; or "
                "use Docker, or ask for minimum_isolation='process' by name",
            )
        raise SandboxUnavailableError("the launcher did not start in time")

    async def _send_code(self) -> None:
        """Give the interpreter its code; it may read late, or never."""
        view = memoryview(self._code)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            os.set_blocking(pipe.fileno(), False)
            while view:
                try:
                    view = view[os.write(pipe.fileno(), view) :]
                except BlockingIOError:
                    await anyio.wait_writable(pipe)

    async def launch(self, kind: dict[str, Any]) -> tuple[socket.socket, int]:
        """Make a cell; return its channel and a pidfd of its first process.

        Raises:
            SandboxUnavailableError: The cell could not be made.
        """
        self._next_id += 1
        message = json.dumps({"id": self._next_id, "cell": kind}).encode()
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise SandboxUnavailableError(f"no socket for a cell: {error}") from None
        try:
            with theirs:
                self._request(message, theirs)
            answer, fds = await self._answer()
            if "error" in answer:
                raise SandboxUnavailableError(f"cannot make a cell: {answer['error']}")
            if not fds:
                raise SandboxUnavailableError(
                    "this process has no descriptor left for a new cell",
                    hint="raise its limit on open files: `ulimit -n`",
                )
        except BaseException:
            # A cell that nobody watches ends with its channel.
            ours.close()
            raise
        return ours, fds[0]

    def _request(self, message: bytes, channel: socket.socket) -> None:
        try:
            socket.send_fds(self._control, [message], [channel.fileno()])
        except OSError as error:
            raise SandboxUnavailableError(f"the launcher is gone: {error}") from None

    async def _answer(self) -> tuple[dict[str, Any], list[int]]:
        while True:
            answer, fds = await self._receive()
            if answer.get("id") == self._next_id:
                return answer, fds
            # The answer to a request whose caller was cancelled.
            for fd in fds:
                _kill(fd)
                os.close(fd)

    async def _receive(self) -> tuple[dict[str, Any], list[int]]:
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._control, 65_536, 1)
                break
            except BlockingIOError:
                await self._wait_for_word()
            except ConnectionResetError:
                data, fds = b"", []
                break
        if not data:
            return {"error": "the launcher ended", "id": self._next_id}, []
        answer: dict[str, Any] = json.loads(data)
        return answer, fds

    async def _wait_for_word(self) -> None:
        try:
            await anyio.wait_readable(self._control)
        except anyio.ClosedResourceError:
            raise SandboxUnavailableError("the backend was closed") from None

    async def close(self) -> None:
        """End the launcher and with it its cells; return when all are gone."""
        with anyio.CancelScope(shield=True):
            if self._control.fileno() != -1:
                anyio.notify_closing(self._control)
                self._control.close()
            await anyio.to_thread.run_sync(self._wait)

    def _wait(self) -> None:
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class NamespaceProcess:
    """The first process of a PID namespace. Owns the pidfd."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd

    async def kill(self) -> None:
        _kill(self._pidfd)
        await anyio.wait_readable(self._pidfd)
        os.close(self._pidfd)


def _kill(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def interpreter() -> str:
    """Return the interpreter below any virtual environment of this process."""
    base: str = getattr(sys, "_base_executable", sys.executable)
    return os.path.realpath(base)


def node_binds(node: str | None) -> list[mounts.Bind]:
    """Return how cells are shown a node: not where it is, which may be below /tmp.

    Args:
        node: Its path; None takes the one on this process's PATH, if there is one.
    """
    found = node or shutil.which("node")
    return (
        [mounts.Bind(os.path.realpath(found), _NODE, read_only=True)] if found else []
    )


def shown_paths(python: str) -> list[str]:
    """Return the host paths that an interpreter needs, and nothing else."""
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(python)))
    own = [f"{prefix}/{name}" for name in ("bin", "lib", "lib64", "include")]
    return [*_SHOWN, *(path for path in own if path not in _SHOWN)]
