"""The last resort: RestrictedPython and rlimits, where the system offers no isolation.

It is used only where `minimum_isolation="process"` asks for it by name. A cell is a
supervisor and its child under the caller's own uid. The child runs code that
RestrictedPython has compiled, with few builtins and imports.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import anyio.to_thread

from toolcell.core import SandboxUnavailableError

from ..client.cell import Cell
from ..client.channel import Channel
from ..client.types import CellTraits
from ..config.settings import Limits, SandboxConfig, enforcers
from ..machine.own_folders import folder_prefix
from .cell_bundle import bundle, command, interpreter
from .cell_settings import cell_settings

_KILL_SECONDS = 2.0


class ProcessBackend:
    """Makes cells out of plain processes, confined by RestrictedPython and rlimits.

    A program that escapes the language has all that the caller's user has.

    Args:
        config: Names the interpreter and the environment of programs.
    """

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config

    @property
    def traits(self) -> CellTraits:
        # Without /proc nothing counts the memory of a process.
        uncounted = () if os.path.isdir("/proc/self") else ("memory_mib",)
        return CellTraits(
            backend="process",
            level="process",
            layers=("restricted_python",),
            enforced_by=enforcers(missing=("cpus", "pids", *uncounted)),
        )

    async def start(self) -> None:
        """Do nothing: there is nothing to prepare."""

    async def show_layer(self, layer: Path, *, finished: bool) -> None:
        """Do nothing: these cells have no packages."""

    async def create_cell(self, limits: Limits) -> Cell:
        python = self._config.python or interpreter()
        workdir = tempfile.mkdtemp(prefix=folder_prefix())
        try:
            sock, process = _spawn(python)
        except OSError as error:
            shutil.rmtree(workdir, ignore_errors=True)
            raise SandboxUnavailableError(
                f"cannot start the interpreter {python}: {error.strerror}",
                hint="set `python` to an interpreter that this user may run",
            ) from None
        traits = self.traits
        settings = cell_settings(
            self._config,
            limits,
            traits.enforced_by,
            require=(),
            work_dir=workdir,
            tmp=workdir,
            uid=None,
        )
        channel = Channel(sock)
        cell = Cell(channel, PlainProcess(process, workdir), traits, settings)
        try:
            await channel.send(bundle())
        except BaseException:
            await cell.kill()
            raise
        return cell

    async def check(self) -> None:
        """Do nothing: there is nothing that could fail."""

    async def aclose(self) -> None:
        """Do nothing: each cell removes its own work dir."""


def _spawn(python: str) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a supervisor; return its socket and its process. Raises OSError."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - our own command, no shell
                command(python, "supervisor.main", 0, 0),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    return ours, process


class PlainProcess:
    """A supervisor that is an ordinary process.

    Args:
        process: The supervisor.
        workdir: Its work dir, which `kill` removes.
    """

    def __init__(self, process: subprocess.Popen[bytes], workdir: str) -> None:
        self._process = process
        self._workdir = workdir

    async def killed_for_memory(self, known: int, since: float) -> bool:
        return False

    async def kill(self) -> None:
        await anyio.to_thread.run_sync(self._kill)

    def _kill(self) -> None:
        # The channel is closed already: the supervisor kills its child and ends.
        try:
            self._process.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILL_SECONDS)
        shutil.rmtree(self._workdir, ignore_errors=True)
