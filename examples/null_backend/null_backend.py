"""A backend of another package. Its cells are plain processes, behind no wall."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from toolcell.sandbox import Limits, SandboxConfig
from toolcell.sandbox.backend_api import (
    Cell,
    CellTraits,
    Channel,
    bundle,
    cell_settings,
    command,
    enforcers,
)


class NullBackend:
    """Makes the cells of one manager."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config

    @property
    def traits(self) -> CellTraits:
        # Here no cgroup and no rlimit bounds processes and CPUs.
        held = enforcers(missing=("cpus", "pids"))
        return CellTraits("null", level="process", layers=(), enforced_by=held)

    async def start(self) -> None:
        """Say here, by SandboxUnavailableError, that no cell can be made."""

    async def create_cell(self, limits: Limits) -> Cell:
        folder, (ours, theirs) = tempfile.mkdtemp(), socket.socketpair()
        argv = command(sys.executable, "supervisor.main", 0, 0)
        with theirs:
            started = subprocess.Popen(argv, stdin=theirs, start_new_session=True)
        settings = cell_settings(
            self._config,
            limits,
            self.traits.enforced_by,
            require=(),
            uid=None,
            work_dir=folder,
            tmp=folder,
        )
        channel = Channel(ours)
        cell = Cell(channel, NullProcess(started, folder), self.traits, settings)
        try:
            await channel.send(bundle())
        except BaseException:
            await cell.kill()
            raise
        return cell

    async def show_layer(self, layer: Path, *, finished: bool) -> None:
        """Cells see the files of this machine."""

    async def check(self) -> None:
        """Nothing can be gone."""

    async def aclose(self) -> None:
        """Nothing is left."""


class NullProcess:
    """Kills a cell."""

    def __init__(self, started: subprocess.Popen[bytes], folder: str) -> None:
        self._started = started
        self._folder = folder

    async def kill(self) -> None:
        self._started.kill()
        await asyncio.to_thread(self._started.wait)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def killed_for_memory(self, known: int, since: float) -> bool:
        return False
