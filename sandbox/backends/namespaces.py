"""Cells made of Linux namespaces, without any daemon.

Theory of operation. One launcher process (`cell/launcher/main.py`) per backend makes
the cells. The host gives it a socket for each new cell and gets back a pidfd of the
cell's first process. When that process is killed the kernel kills the whole PID
namespace, and the pidfd becomes readable only when nothing of it is left. The launcher,
and with it every cell, ends when the host ends or the host's end of the control socket
closes, however that happens.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from typing import Any

import anyio
import anyio.to_thread

from toolcell.core import ConfigError, SandboxUnavailableError

from ..cell.wire.contract import CELL_UID, MOUNTS
from ..client.cell import Cell
from ..client.channel import Channel
from ..client.types import CellTraits
from ..config import mount_rules
from ..config.settings import Enforcer, Limits, SandboxConfig
from ..machine import host_cgroups
from ..packages import layer_store as layers
from .launcher import LauncherProcess, NamespaceProcess
from .launcher_start import interpreter
from .surroundings import cell_environment

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
    "/etc/fonts",
    # The system's public certificates, for programs with a network.
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/usr/share/ca-certificates",
    "/etc/localtime",
    "/etc/mime.types",
    # The public names of ports and protocols.
    "/etc/services",
    "/etc/protocols",
)
_NODE = "/node/bin/node"
# With CONFIG_CHECKPOINT_RESTORE: the numbers of processes can begin anew.
_LAST_PID = "/proc/sys/kernel/ns_last_pid"
_log = logging.getLogger(__name__)


class SubprocessBackend:
    """Makes cells out of namespaces on this machine (Linux 5.4 or newer).

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
        """The reason why cells have no cgroup of their own; empty if they have one."""
        return self._why_no_cgroups

    async def start(self) -> None:
        """Sweep orphans, start the launcher and make one cell to see that it works.

        Cgroups of orphans that cannot be removed at once are left to `clean`.

        Raises:
            SandboxUnavailableError: This machine cannot make cells.
        """
        if sys.platform != "linux":
            raise SandboxUnavailableError(
                f"there are no namespaces on {sys.platform}",
                hint="install Docker, or ask for minimum_isolation='process' by name",
            )
        if self._config.programs_per_cell > 1:
            _check_last_pid()
        await anyio.to_thread.run_sync(host_cgroups.sweep)
        try:
            self._cgroups = host_cgroups.create()
        except OSError as error:
            self._why_no_cgroups = str(error)
        try:
            self._launcher = await self._start_launcher()
        except BaseException:
            await self.aclose()
            raise

    async def _start_launcher(self) -> LauncherProcess:
        python = self._config.python or interpreter()
        show = shown_paths(python)
        binds = mount_rules.follow(mount.bind for mount in self._config.mounts)
        scratch = mount_rules.Bind("", self._config.work_dir, read_only=False)
        mount_rules.keep_clear_of([scratch, *binds], show)
        binds += [*layers.store_binds(self._config), *node_binds(self._config.node)]
        launcher = LauncherProcess.spawn(python)
        try:
            await launcher.set_up(
                {
                    "cell_uid": CELL_UID,
                    "workdir": self._config.work_dir,
                    "show": show,
                    "mounts": binds,
                    "cgroups": self._cgroups,
                    "cell": self._kind(self._config.limits),
                }
            )
        except BaseException:
            await launcher.aclose()
            raise
        return launcher

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
            self._launcher = await self._start_launcher()
        return self._launcher

    async def _renew_cgroups(self) -> None:
        if not self._cgroups:
            return
        await self._remove_cgroups()
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
            sock, pidfd, pid = await launcher.launch(self._kind(limits))

        async def oom_kills() -> int:
            async with self._lock:
                return await launcher.oom_kills(pid)

        process = NamespaceProcess(pidfd, oom_kills)
        # The supervisor has its settings from the launcher.
        return Cell(Channel(sock), process, self.traits, {})

    def _kind(self, limits: Limits) -> dict[str, Any]:
        """Return the kind of a cell: the launcher prepares one of the last kind."""
        own = limits.model_dump(include={"disk_mb", "memory_mb", "pids", "cpus"})
        return {"limits": own, "settings": self._settings(limits)}

    def _settings(self, limits: Limits) -> dict[str, Any]:
        rlimits = {"open_files": limits.open_files}
        if not self._cgroups:
            rlimits["processes"] = limits.pids
        return {
            "uid": CELL_UID,
            "workdir": self._config.work_dir,
            "env": cell_environment(self._config.env, self._config.work_dir),
            "aliases": "",
            "node": _NODE,
            "rlimits": rlimits,
            "address_space": 0 if self._cgroups else limits.memory_mb << 20,
            "affinity": 0 if self._cgroups else limits.cpus,
            "require": list(_REQUIRED),
            "renews": MOUNTS if self._config.programs_per_cell > 1 else "",
            "disk_mb": limits.disk_mb,
        }

    async def aclose(self) -> None:
        launcher, self._launcher = self._launcher, None
        if launcher is not None:
            await launcher.aclose()
        await self._remove_cgroups()
        self._cgroups = {}

    async def _remove_cgroups(self) -> None:
        with anyio.CancelScope(shield=True):
            left = await anyio.to_thread.run_sync(host_cgroups.remove, self._cgroups)
        if left:
            _log.warning("cgroups are left for the next sweep: %s", ", ".join(left))


def _check_last_pid() -> None:
    if not os.path.exists(_LAST_PID):
        raise ConfigError(
            f"programs_per_cell is more than 1, and this kernel has no {_LAST_PID}",
            hint="set programs_per_cell to 1",
        )


def node_binds(node: str | None) -> list[mount_rules.Bind]:
    """Return the mount of node: at its own path it might be below a cell's /tmp.

    Args:
        node: Its path; None for the one on this process's PATH, if there is one.
    """
    found = node or shutil.which("node")
    return (
        [mount_rules.Bind(os.path.realpath(found), _NODE, read_only=True)]
        if found
        else []
    )


def shown_paths(python: str) -> list[str]:
    """Return the host paths that an interpreter needs, and no others."""
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(python)))
    own = [f"{prefix}/{name}" for name in ("bin", "lib", "lib64", "include")]
    return [*_SHOWN, *(path for path in own if path not in _SHOWN)]
