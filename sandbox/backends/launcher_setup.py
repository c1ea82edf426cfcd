"""The settings that a launcher gets before it makes cells."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from typing import Any, NamedTuple

from ..cell.kernel import gvisor
from ..cell.wire.contract import CELL_UID, MOUNTS, SHARED_FOLDERS
from ..config import mount_rules
from ..config.host_rules import hosts_file
from ..config.settings import (
    LIMITS,
    Enforcer,
    IsolationLevel,
    Limits,
    SandboxConfig,
    enforcers,
)
from ..machine import host_cgroups
from ..machine.own_folders import folder_prefix
from .cell_bundle import interpreter
from .cell_settings import authority_pem, cell_settings
from .shown_paths import hidden_paths, shown_paths

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

    @property
    def enforced_by(self) -> dict[str, Enforcer]:
        """The enforcer of each limit."""
        # gVisor takes an affinity, and does not hold it.
        missing = ("cpus",) if gvisor.is_this_kernel() else ()
        return enforcers(cgroup=LIMITS if self.cgroups else (), missing=missing)

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
        if config.npm:
            from ..packages.npm_installer import npm_binds

            binds += npm_binds(config)
        node = node_binds(config.node)
        binds += node
        setup = {
            "host": os.getpid(),
            "levels": self.levels,
            "folder": self.folder,
            "node": node[0].source if node else "",
            "cell_uid": CELL_UID,
            "workdir": config.work_dir,
            "show": show,
            "hide": hidden_paths(),
            "hosts": hosts_file(config.network.hosts),
            "authority": authority_pem(config.network),
            "mounts": binds,
            "cgroups": self.cgroups,
            "cell": self.kind(config.limits),
        }
        return json.dumps(setup).encode()

    def kind(self, limits: Limits) -> dict[str, Any]:
        """Return the kind of a cell: the launcher prepares one of the last kind."""
        settings = cell_settings(
            self.config,
            limits,
            self.enforced_by,
            require=REQUIRED,
            memory_folders=(self.config.work_dir, *SHARED_FOLDERS),
            node=_NODE,
            renews=MOUNTS if self.config.programs_per_cell > 1 else "",
            disk_mib=limits.disk_mib,
        )
        return {"limits": limits.of_cell, "settings": settings}


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
