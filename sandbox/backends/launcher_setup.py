"""The things that a launcher is told before it makes cells."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from typing import Any, NamedTuple

from ..cell.wire.contract import CELL_UID, MOUNTS, SHARED_FOLDERS
from ..config import mount_rules
from ..config.environment import cell_environment
from ..config.host_rules import hosts_file
from ..config.settings import IsolationLevel, Limits, SandboxConfig
from ..machine import host_cgroups
from ..machine.own_folders import folder_prefix
from .cell_bundle import interpreter
from .shown_paths import shown_paths

REQUIRED = ("no_capabilities", "no_new_privileges", "seccomp")
"""The layers of isolation without which no program runs."""

_NODE = "/node/bin/node"


class LauncherSetup(NamedTuple):
    """A configuration, and the groups on this machine in which its cells are to be."""

    config: SandboxConfig
    cgroups: dict[str, str]
    """The parent group by controller; empty if there can be none."""

    why_no_cgroups: str = ""
    """The reason why there are none."""

    folder: str = ""
    """The place of the folders of `confined` cells, which their launcher makes."""

    refused: str = ""
    """The reason why the kernel made no cell of namespaces, if it was tried."""

    @classmethod
    def make(cls, config: SandboxConfig) -> LauncherSetup:
        """Make the groups, if this machine has them; `host_cgroups.remove` removes."""
        temporary = os.path.realpath(tempfile.gettempdir())
        folder = f"{temporary}/{folder_prefix()}{secrets.token_hex(4)}"
        try:
            return cls(config, host_cgroups.create(), folder=folder)
        except OSError as error:
            return cls(config, {}, str(error), folder)

    @property
    def levels(self) -> list[IsolationLevel]:
        """The isolation levels to try, the strongest first."""
        config = self.config
        if config.strongest_isolation == "confined" or self.refused:
            return ["confined"]
        if config.minimum_isolation in ("confined", "process"):
            return ["namespaces", "confined"]
        return ["namespaces"]

    @property
    def python(self) -> str:
        """The interpreter of the launcher and of its cells."""
        return self.config.python or interpreter()

    def message(self) -> bytes:
        """Return it as the launcher reads it.

        Raises:
            ConfigError: A mount lies over something that cells need.
            SandboxUnavailableError: A mount or the folder of packages cannot be used.
        """
        config = self.config
        show = shown_paths(self.python)
        binds = mount_rules.follow(mount.bind for mount in config.mounts)
        scratch = mount_rules.Bind("", config.work_dir, read_only=False)
        mount_rules.keep_clear_of([scratch, *binds], show)
        if config.wants_packages:
            from ..packages.layer_store import store_binds

            binds += store_binds(config)
        node = node_binds(config.node)
        binds += node
        setup = {
            "levels": self.levels,
            "folder": self.folder,
            "node": node[0].source if node else "",
            "cell_uid": CELL_UID,
            "workdir": config.work_dir,
            "show": show,
            "hosts": hosts_file(config.network.hosts),
            "mounts": binds,
            "cgroups": self.cgroups,
            "cell": self.kind(config.limits),
        }
        return json.dumps(setup).encode()

    def kind(self, limits: Limits) -> dict[str, Any]:
        """Return the kind of a cell: the launcher prepares one of the last kind."""
        own = limits.model_dump(include={"disk_mib", "memory_mib", "pids", "cpus"})
        return {"limits": own, "settings": self._settings(limits)}

    def _settings(self, limits: Limits) -> dict[str, Any]:
        config, held = self.config, bool(self.cgroups)
        rlimits = {"open_files": limits.open_files}
        if not held:
            rlimits["processes"] = limits.pids
        return {
            "uid": CELL_UID,
            "workdir": config.work_dir,
            "tmp": "/tmp",  # noqa: S108 - the cell's own
            "confined": "",
            "env": cell_environment(config.env, config.work_dir),
            "aliases": "",
            "node": _NODE,
            "rlimits": rlimits,
            "memory_watch": None if held else self._memory_watch(limits),
            "affinity": 0 if held else limits.cpus,
            "require": list(REQUIRED),
            "renews": MOUNTS if config.programs_per_cell > 1 else "",
            "disk_mib": limits.disk_mib,
        }

    def _memory_watch(self, limits: Limits) -> dict[str, Any]:
        folders = [self.config.work_dir, *SHARED_FOLDERS]
        limit = limits.memory_mib << 20
        return {"bytes": limit, "folders": folders, "own_kernel": False}


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
