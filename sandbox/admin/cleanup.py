"""Removes containers, cgroups and folders that dead hosts left behind."""

from __future__ import annotations

import contextlib

import anyio
import anyio.to_thread
from pydantic import BaseModel, ConfigDict

from ..machine import host_cgroups, own_folders

_CONTAINER_SECONDS = 10.0


class Cleaned(BaseModel):
    """The outcome of `clean`, in names such as "cgroup /sys/fs/cgroup/..."."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    removed: tuple[str, ...]
    """Leftovers that were removed."""

    left: tuple[str, ...]
    """Leftovers that stay: their processes do not end, or another user owns them."""


async def clean(docker_host: str | None = None) -> Cleaned:
    """Remove leftovers of dead owners on this machine.

    Containers and cgroups of living owners, and everything that toolcell did not
    make, stay. An engine that does not answer is passed over. It takes 25 seconds at
    most.

    Args:
        docker_host: The engine's address; None takes DOCKER_HOST or the default.
    """
    groups, stuck = await anyio.to_thread.run_sync(host_cgroups.sweep_everywhere)
    folders, remaining = await anyio.to_thread.run_sync(own_folders.sweep_folders)
    containers, running = await _sweep_containers(docker_host)
    return Cleaned(
        removed=_names(groups, folders, containers),
        left=_names(stuck, remaining, running),
    )


def _names(
    groups: list[str], folders: list[str], containers: list[str]
) -> tuple[str, ...]:
    return (
        *(f"cgroup {path}" for path in groups),
        *(f"folder {path}" for path in folders),
        *(f"container {name[:12]}" for name in containers),
    )


async def _sweep_containers(docker_host: str | None) -> tuple[list[str], list[str]]:
    from ..backends.docker_engine import QUICK_SECONDS, in_thread

    found: list[str] = []
    # An engine that is not there, or does not answer, is asked for nothing.
    with anyio.move_on_after(QUICK_SECONDS), contextlib.suppress(Exception):
        found = await in_thread(lambda: _orphans(docker_host))
    left = found
    with anyio.move_on_after(_CONTAINER_SECONDS), contextlib.suppress(Exception):
        if found:
            await in_thread(lambda: _remove(docker_host, found))
            orphans = await in_thread(lambda: _orphans(docker_host))
            left = [each for each in found if each in orphans]
    return [each for each in found if each not in left], left


def _orphans(docker_host: str | None) -> list[str]:
    from ..backends.docker_engine import connect, orphans

    client = connect(docker_host)
    try:
        return orphans(client)
    finally:
        client.close()


def _remove(docker_host: str | None, containers: list[str]) -> None:
    from ..backends.docker_engine import SLOW_SECONDS, connect, remove_all

    client = connect(docker_host, SLOW_SECONDS)
    try:
        remove_all(client, containers)
    finally:
        client.close()
