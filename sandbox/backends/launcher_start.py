"""Starts a launcher's interpreter, which reads its code while its host does the same.

Only the standard library is imported here, so a command can start its launcher first.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple

from toolcell.core import SandboxUnavailableError

from ..machine.leases import lease
from .cell_bundle import ENVIRONMENT, bundle, command, compiled_bundle


class StartedLauncher(NamedTuple):
    """A launcher's process that waits for its setup."""

    process: subprocess.Popen[bytes]
    control: socket.socket


_early: ContextVar[list[StartedLauncher]] = ContextVar("early")


def interpreter() -> str:
    """Return the interpreter below any virtual environment of this process."""
    base: str = getattr(sys, "_base_executable", sys.executable)
    return os.path.realpath(base)


@contextlib.contextmanager
def early_launcher() -> Iterator[None]:
    """Start a launcher now, for a `SandboxManager` that is opened inside.

    It saves a script its time to import. It is used by the first manager of the
    `subprocess` backend whose configuration names no `python`; without one it ends.

    Raises:
        SandboxUnavailableError: The interpreter cannot be started.
    """
    waiting = [start_launcher(interpreter())]
    token = _early.set(waiting)
    try:
        yield
    finally:
        _early.reset(token)
        for each in waiting:
            each.control.close()
            each.process.kill()
            each.process.wait()


def take_launcher(python: str) -> StartedLauncher:
    """Return the launcher that was started early, or a new one.

    Raises:
        SandboxUnavailableError: The interpreter cannot be started.
    """
    waiting = _early.get([])
    if waiting and python == interpreter():
        return waiting.pop()
    return start_launcher(python)


def start_launcher(python: str) -> StartedLauncher:
    """Start a launcher process.

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
    try:
        with theirs, _code(python) as code:
            process = subprocess.Popen(  # noqa: S603 - our own command, no shell
                command(python, "launcher.main", theirs.fileno(), site=False),
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


@contextlib.contextmanager
def _code(python: str) -> Iterator[int]:
    """Yield a file of memory with the code: nobody waits until it is read."""
    data = memoryview(compiled_bundle() if python == interpreter() else bundle())
    code = os.memfd_create("toolcell", os.MFD_CLOEXEC)
    try:
        while data:
            data = data[os.write(code, data) :]
        os.lseek(code, 0, os.SEEK_SET)
        yield code
    finally:
        os.close(code)
