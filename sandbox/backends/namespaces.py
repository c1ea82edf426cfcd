"""Cells on this machine, without any daemon.

Theory of operation. One launcher process (`cell/launcher/main.py`) per backend makes
the cells, of namespaces where the kernel gives them, else of Landlock. The host gives
it a socket for each new cell and gets back a handle of the cell's first process. When
that process is killed the kernel kills the whole PID namespace, and the handle becomes
readable only when nothing of it is left; in `confined` cells the launcher kills the
rest. The
launcher, and with it every cell, ends when the host ends or the host's end of the
control socket closes, however that happens.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from toolcell.core import ConfigError, SandboxUnavailableError

from ..cell.kernel import gvisor
from ..client.cell import Cell
from ..client.channel import Channel
from ..client.types import CellTraits
from ..config.settings import IsolationLevel, Limits, SandboxConfig
from ..machine import host_cgroups
from .launcher import FirstProcess, LauncherProcess
from .launcher_setup import LauncherSetup
from .launcher_start import take_set_up

_NAMESPACE_LAYERS = ("user", "mount", "pid", "net", "ipc", "uts", "private_root")
# With CONFIG_CHECKPOINT_RESTORE: the numbers of processes can begin anew.
_LAST_PID = "/proc/sys/kernel/ns_last_pid"
_CONFINED_NOTICE = (
    "cells are 'confined' by Landlock and seccomp: they share the network, the process "
    "numbers and the paths of this machine, and have none of its files"
)
_GVISOR_NOTICE = (
    "this machine is a gVisor container: `cpus` is not held, each process counts the "
    "memory that it shares, and programs see which connections there are"
)
_log = logging.getLogger(__name__)


class SubprocessBackend:
    """Makes cells on this machine (Linux 5.4 or newer).

    All cells come from one launcher. When it ends, which ends its cells too, the next
    request starts another. Without cgroups the same limits are enforced by rlimits, CPU
    affinity and the supervisor's watch, and `traits` says so.

    Args:
        config: Names the interpreter, the mounts and the default limits.
    """

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._launcher: LauncherProcess | None = None
        self._lock = anyio.Lock()
        self._setup = LauncherSetup(config=config, cgroups={})
        self._level: IsolationLevel = "namespaces"
        self._has_network = True
        self.notices: tuple[str, ...] = ()
        """Facts about the cells that the user should know."""

    @property
    def traits(self) -> CellTraits:
        held = bool(self._setup.cgroups)
        layers = _NAMESPACE_LAYERS if self._level == "namespaces" else ()
        layers = (*layers, "cgroup") if held else layers
        return CellTraits(
            backend="subprocess",
            level=self._level,
            layers=layers,
            enforced_by=self._setup.enforced_by,
            has_network=self._has_network,
        )

    @property
    def why_no_cgroups(self) -> str:
        """The reason why cells have no cgroup of their own; empty if they have one."""
        return self._setup.why_no_cgroups

    async def start(self) -> None:
        """Sweep orphans, start the launcher and make one cell to see that it works.

        Cgroups of orphans that cannot be removed at once are left to `clean`.

        Raises:
            ConfigError: It cannot use them again.
            SandboxUnavailableError: This machine cannot make cells.
        """
        if sys.platform != "linux":
            raise SandboxUnavailableError(
                f"there are no namespaces on {sys.platform}",
                hint="install Docker Desktop, Colima or another engine, and start it",
                details={"kernel": sys.platform},
            )
        await anyio.to_thread.run_sync(host_cgroups.sweep)
        try:
            ahead = take_set_up(self._config)
            if ahead is not None:
                started, self._setup = ahead
                self._launcher = await self._made_ready(LauncherProcess(started))
            else:
                self._setup = LauncherSetup.make(self._config)
                self._launcher = await self._start_launcher()
            if self._level == "namespaces" and self._config.programs_per_cell > 1:
                _check_last_pid()
        except BaseException:
            await self.aclose()
            raise

    async def _start_launcher(self) -> LauncherProcess:
        message = self._setup.message()
        launcher = LauncherProcess.spawn(self._setup.python)
        return await self._made_ready(launcher, message)

    async def _made_ready(
        self, launcher: LauncherProcess, message: bytes = b""
    ) -> LauncherProcess:
        """Wait until a launcher is ready, or one that tries a weaker level is.

        Args:
            launcher: The launcher.
            message: What it is set up by, unless it was already.
        """
        try:
            if message:
                launcher.set_up(message)
            self._note(await launcher.wait_ready(self._setup.refused))
        except BaseException as error:
            await launcher.aclose()
            refused = getattr(error, "details", {})
            if refused.get("level") != "namespaces" or len(self._setup.levels) == 1:
                raise
            # It failed in the midst of making namespaces, and cannot go back.
            self._setup = self._setup._replace(refused=refused["kernel"])
            return await self._start_launcher()
        return launcher

    def _note(self, found: dict[str, Any]) -> None:
        """Remember the level of the cells, and what to tell about it."""
        self._level, self._has_network = found["level"], found["has_network"]
        if why := found["why"] or self._setup.refused:
            why = f"{why}; `toolcell doctor` says what helps"
            self.notices = (f"{_CONFINED_NOTICE} ({why})",)
        elif gvisor.is_this_kernel():
            self.notices = (_GVISOR_NOTICE,)

    async def show_layer(self, layer: Path, *, finished: bool) -> None:
        """Do nothing: cells see the folder of layers."""

    async def check(self) -> None:
        async with self._lock:
            launcher = await self._living_launcher()
            await launcher.check()

    async def _living_launcher(self) -> LauncherProcess:
        """Return the launcher, or start another if it has ended."""
        if self._launcher is None:
            raise SandboxUnavailableError(
                "the backend is closed", hint="open a new SandboxManager"
            )
        if self._launcher.ended:
            await self._launcher.aclose()
            await self._renew_cgroups()
            earlier = self._level
            self._launcher = await self._start_launcher()
            if self._level != earlier:
                why = "; ".join(self.notices)
                _log.warning(
                    "cells are %r from now on, not %r: %s", self._level, earlier, why
                )
        return self._launcher

    async def _renew_cgroups(self) -> None:
        if not self._setup.cgroups:
            return
        await self._remove_cgroups()
        renewed = LauncherSetup.make(self._config)
        if not renewed.cgroups:
            raise SandboxUnavailableError(
                "the cgroups that held the cells cannot be made again: "
                f"{renewed.why_no_cgroups}",
                hint="`toolcell doctor` says how to get cgroups",
            )
        self._setup = renewed

    async def create_cell(self, limits: Limits) -> Cell:
        async with self._lock:
            launcher = await self._living_launcher()
            sock, handle, pid = await launcher.launch(self._setup.kind(limits))

        async def oom_kills() -> int:
            async with self._lock:
                return await launcher.oom_kills(pid)

        leaves_some = self._level == "confined"
        process = FirstProcess(handle, oom_kills, leaves_some=leaves_some)
        # The supervisor has its settings from the launcher.
        return Cell(Channel(sock), process, self.traits, {})

    async def aclose(self) -> None:
        launcher, self._launcher = self._launcher, None
        if launcher is not None:
            await launcher.aclose()
        await self._remove_cgroups()
        if self._setup.folder:
            # Unless the launcher was killed it has done so.
            shutil.rmtree(self._setup.folder, ignore_errors=True)
        self._setup = LauncherSetup(config=self._config, cgroups={})

    async def _remove_cgroups(self) -> None:
        with anyio.CancelScope(shield=True):
            left = await anyio.to_thread.run_sync(
                host_cgroups.remove, self._setup.cgroups
            )
        if left:
            _log.warning("cgroups are left for the next sweep: %s", ", ".join(left))


def _check_last_pid() -> None:
    if not os.path.exists(_LAST_PID):
        raise ConfigError(
            f"programs_per_cell is more than 1, and this kernel has no {_LAST_PID}",
            hint="set programs_per_cell to 1",
        )
