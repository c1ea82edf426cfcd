"""Starts a launcher's interpreter, which reads its code while its host does the same.

Only the standard library is imported here, so a command can start its launcher first.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from toolcell.core import SandboxUnavailableError

from ..machine.leases import lease
from .cell_bundle import (
    ENVIRONMENT,
    bundle,
    command,
    compiled_bundle,
    compiled_folder,
    interpreter,
)

if TYPE_CHECKING:
    from ..config.settings import SandboxConfig
    from .launcher_setup import LauncherSetup


class StartedLauncher(NamedTuple):
    """A launcher's process that waits for its setup."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    """The host's end of its control socket, not blocking."""


class EarlyLauncher:
    """A launcher that was started ahead of the manager that is to use it.

    Raises:
        SandboxUnavailableError: The interpreter cannot be started.
    """

    def __init__(self) -> None:
        self._started: StartedLauncher | None
        self._started = start_launcher(interpreter(), at_once=True)
        self._setup: LauncherSetup | None = None

    def set_up(self, config: SandboxConfig) -> None:
        """Have it make its first cell now, for a manager of this configuration.

        A manager of another one then starts its own launcher.

        Raises:
            ConfigError: A mount lies over something that cells need.
            SandboxUnavailableError: A mount or the folder of packages cannot be used.
        """
        from .launcher_setup import LauncherSetup

        usable = config.python in (None, interpreter()) and not config.names_docker
        if self._started is not None and self._setup is None and usable:
            self._setup = setup = LauncherSetup.make(config)
            try:
                send_setup(self._started.control, setup.message())
            except BaseException:
                self.end()
                raise

    def take(self, python: str) -> StartedLauncher | None:
        """Return the launcher if it has this interpreter and was not set up; once."""
        if self._setup is not None or python != interpreter():
            return None
        started, self._started = self._started, None
        return started

    def take_set_up(
        self, config: SandboxConfig
    ) -> tuple[StartedLauncher, LauncherSetup] | None:
        """Return the launcher if it was set up for a configuration; once."""
        started, setup = self._started, self._setup
        if started is None or setup is None or setup.config != config:
            return None
        self._started = None
        return started, setup

    def end(self) -> None:
        """End it, unless a manager has it."""
        started, self._started = self._started, None
        if started is None:
            return
        started.control.close()
        started.process.kill()
        started.process.wait()
        if self._setup is not None:
            from ..machine import host_cgroups

            host_cgroups.remove(self._setup.cgroups)


_early: ContextVar[EarlyLauncher | None] = ContextVar("early", default=None)


@contextlib.contextmanager
def early_launcher() -> Iterator[EarlyLauncher]:
    """Start a launcher now, for a `SandboxManager` that is opened inside.

    It saves a script its time to import, and with `EarlyLauncher.set_up` the time to
    make a first cell. It is used by the first manager of the `subprocess` backend whose
    configuration names no `python`; without one it ends.

    Raises:
        SandboxUnavailableError: The interpreter cannot be started.
    """
    launcher = EarlyLauncher()
    token = _early.set(launcher)
    try:
        yield launcher
    finally:
        _early.reset(token)
        launcher.end()


def take_launcher(python: str) -> StartedLauncher:
    """Return the launcher that was started early, or a new one.

    Raises:
        SandboxUnavailableError: The interpreter cannot be started.
    """
    early = _early.get()
    return (early.take(python) if early else None) or start_launcher(python)


def take_set_up(
    config: SandboxConfig,
) -> tuple[StartedLauncher, LauncherSetup] | None:
    """Return the launcher that was set up early for a configuration, if any."""
    early = _early.get()
    return early.take_set_up(config) if early else None


def send_setup(control: socket.socket, message: bytes) -> None:
    """Send a launcher its set-up, and a pidfd of this process if there are such."""
    own: list[int] = []
    with contextlib.suppress(OSError):
        own = [os.pidfd_open(os.getpid())]
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(control, [message], own)
    finally:
        for fd in own:
            os.close(fd)


def start_launcher(python: str, *, at_once: bool = False) -> StartedLauncher:
    """Start a launcher process.

    Args:
        python: Its interpreter.
        at_once: True if it reads its modules itself, as this process has no time.

    Raises:
        SandboxUnavailableError: The interpreter cannot be started.
    """
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise SandboxUnavailableError(
            f"no socket for the launcher: {error}",
            hint="raise the limit on open files: `ulimit -n`",
        ) from None
    entry, data = _code(python, at_once=at_once)
    try:
        with theirs, _file_of_memory(data) as code:
            process = subprocess.Popen(  # noqa: S603 - our own command, no shell
                command(python, entry, theirs.fileno(), site=False),
                stdin=code,
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
    ours.setblocking(False)
    return StartedLauncher(process, lease(ours))


def _code(python: str, *, at_once: bool) -> tuple[str, bytes]:
    """Return the module of a cell that is entered, and what the interpreter reads."""
    own = python == interpreter()
    found = compiled_folder() if own and at_once else None
    if found is not None:
        loader, folder = found
        return "folder", loader + os.fsencode(folder)
    return "launcher.main", compiled_bundle() if own else bundle()


@contextlib.contextmanager
def _file_of_memory(data: bytes) -> Iterator[int]:
    """Yield a file that holds some bytes: nobody waits until they are read."""
    left = memoryview(data)
    code = os.memfd_create("toolcell", os.MFD_CLOEXEC)
    try:
        while left:
            left = left[os.write(code, left) :]
        os.lseek(code, 0, os.SEEK_SET)
        yield code
    finally:
        os.close(code)
