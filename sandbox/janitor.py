"""Removes what hosts that died left behind: containers and cgroups, no more."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import anyio.to_thread

from . import host_cgroups, owner


async def clean(docker_host: str | None = None) -> list[str]:
    """Remove leftovers of dead owners on this machine and return their names.

    Containers and cgroups of living owners, and everything that toolcell did not
    make, stay. An engine that does not answer is passed over.

    Args:
        docker_host: The engine's address; None takes DOCKER_HOST or the default.
    """
    removed = [f"cgroup {path}" for path in host_cgroups.sweep()]
    removed += [f"folder {path}" for path in _sweep_folders()]
    containers = await anyio.to_thread.run_sync(_sweep_containers, docker_host)
    return removed + [f"container {name[:12]}" for name in containers]


def _sweep_folders() -> list[str]:
    removed = []
    for path in Path(tempfile.gettempdir()).glob(f"{owner.FOLDER_PREFIX}*"):
        process = path.name.removeprefix(owner.FOLDER_PREFIX).rpartition("_")[0]
        if not path.is_symlink() and not owner.lives(process):
            shutil.rmtree(path, ignore_errors=True)
            removed.append(str(path))
    return removed


def _sweep_containers(docker_host: str | None) -> list[str]:
    from .docker_backend import connect, sweep

    try:
        client = connect(docker_host)
    except Exception:  # noqa: BLE001 - no engine, nothing of it to clean
        return []
    try:
        return sweep(client)
    finally:
        client.close()
