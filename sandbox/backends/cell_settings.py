"""The settings by which a supervisor sets up its cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..cell.wire import aliases, trust
from ..cell.wire.contract import CELL_UID, USER_NAME
from ..config.mount_rules import NODE_MODULES
from ..config.network import Network
from ..config.settings import LIMITS, Enforcer, Limits, SandboxConfig

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def cell_environment(
    config: SandboxConfig, workdir: str, image_path: str = ""
) -> dict[str, str]:
    """Return the whole environment of a program.

    Args:
        config: Names the variables that are set, and packages of npm.
        workdir: The home folder of programs; pip installs commands below it.
        image_path: The PATH of an image; empty for the usual one.
    """
    given = [path for path in image_path.split(":") if path.startswith("/")]
    own = [aliases.FOLDER, f"{workdir}/.local/bin"]
    # After the system's, so that no package takes the place of bash or node.
    last = ["/node/bin", *([f"{NODE_MODULES}/.bin"] if config.npm else [])]
    base = {
        "PATH": ":".join([*own, *(given or [_SYSTEM_PATH]), *last]),
        "HOME": workdir,
        "USER": USER_NAME,
        "LOGNAME": USER_NAME,
        "TMPDIR": "/tmp",  # noqa: S108 - the cell's own
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "Agg",
    }
    return {**base, **config.env}


def cell_settings(
    config: SandboxConfig,
    limits: Limits,
    enforced_by: Mapping[str, Enforcer],
    *,
    require: Sequence[str],
    work_dir: str = "",
    memory_folders: Sequence[str] = (),
    own_kernel: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """Return the settings of a cell, of which a supervisor needs each.

    Args:
        config: Names the environment and the work dir of programs.
        limits: The limits of the cell.
        enforced_by: The enforcer of each limit, as in the traits of its backend.
        require: The layers of isolation without which no program runs.
        work_dir: The folder that programs start in; empty takes the configuration's.
        memory_folders: File systems in memory, whose files count as memory.
        own_kernel: True if the cell has its own kernel.
        more: Settings in place of the usual ones, or beside them.
    """
    work_dir = work_dir or config.work_dir
    watch = {
        "bytes": limits.memory_mib << 20,
        "folders": list(memory_folders),
        "own_kernel": own_kernel,
    }
    return {
        "uid": CELL_UID,
        "workdir": work_dir,
        "tmp": "/tmp",  # noqa: S108 - the cell's own
        "confined": "",
        "env": cell_environment(config, work_dir),
        "aliases": "",
        "authority": authority_pem(config.network),
        "trust": trust.FOLDER if config.network.inspect else "",
        "node": "",
        "rlimits": {
            rule.rlimit: getattr(limits, name)
            for name, rule in LIMITS.items()
            if rule.rlimit and enforced_by.get(name) == "rlimit"
        },
        "memory_watch": None if enforced_by.get("memory_mib") == "cgroup" else watch,
        "affinity": limits.cpus if enforced_by.get("cpus") == "affinity" else 0,
        "require": list(require),
        "renews": "",
        **more,
    }


def authority_pem(network: Network) -> str:
    """Return the certificate that cells trust for inspected hosts; empty for none.

    Raises:
        ConfigError: The package `cryptography` is missing.
    """
    if not network.inspect:
        return ""
    from ..network.authority import authority_for

    return authority_for(network.inspect).pem
