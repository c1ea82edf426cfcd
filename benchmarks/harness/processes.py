"""Finds our cells on this machine: their processes and containers."""

from __future__ import annotations

import os
import time
from pathlib import Path

import anyio
import docker

from harness.measure import Missing
from toolcell.sandbox import SandboxManager

_SETTLE_SECONDS = 30.0
_POLL_SECONDS = 0.002
_REST_SECONDS = 0.01
_CALM_POLLS = 5
_OWNER_LABEL = "dev.toolcell.owner"


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:
        # It ended while we looked.
        return []
    return found


def descendants(pid: int) -> list[int]:
    """Return the children of a process, their children, and so on."""
    found: list[int] = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def launcher() -> int:
    """Return the one process that this one has started: it makes the cells."""
    [pid] = children(os.getpid())
    return pid


def cells_cpu_seconds() -> float:
    """Return the CPU time of this process and of all below it, ended ones as well."""
    ticks = 0
    for pid in descendants(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            # It ended while we looked: its time is its parent's.
            continue
        ticks += sum(map(int, fields[11:15]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def pss_mib(pid: int) -> float:
    """Return a process's share of the memory that it uses.

    Raises:
        Missing: Only root may look.
    """
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except PermissionError:
        raise Missing("only root may read the memory of cells") from None
    except (FileNotFoundError, ProcessLookupError):
        # It has ended since it was listed.
        return 0.0
    [kilobytes] = [line.split()[1] for line in text.splitlines() if line[:4] == "Pss:"]
    return int(kilobytes) / 1024


async def cells_settled(sandbox: SandboxManager, prepared: int) -> None:
    """Wait until the pool is full and no cell comes or goes any more."""
    maker, before, calm = launcher(), [0], 0
    with anyio.fail_after(_SETTLE_SECONDS):
        while calm < _CALM_POLLS:
            now = children(maker)
            full = sandbox.pool_stats().ready == prepared
            calm = calm + 1 if full and now == before else 0
            before = now
            await anyio.sleep(_POLL_SECONDS)


async def all_settled() -> None:
    """Wait until no process below this one has come or gone for a while.

    Pools of other processes, which cannot be asked, have been filled then: they begin
    0.02 seconds after a run.
    """
    before, calm = [0], 0
    with anyio.fail_after(_SETTLE_SECONDS):
        while calm < _CALM_POLLS:
            await anyio.sleep(_REST_SECONDS)
            now = descendants(os.getpid())
            calm = calm + 1 if now == before else 0
            before = now


async def containers_settled(count: int = 0) -> None:
    """Wait until the engine has only so many containers of this process."""
    client = docker.from_env()
    try:
        with anyio.fail_after(_SETTLE_SECONDS):
            while len(_ours(client)) > count:
                await anyio.sleep(_POLL_SECONDS)
    finally:
        client.close()


def _ours(client: docker.DockerClient) -> list[str]:
    filters: dict[str, str | list[str] | bool] = {"label": _OWNER_LABEL}
    containers = client.containers.list(all=True, sparse=True, filters=filters)
    # A sparse listing has labels only here; a full one fails on what goes meanwhile.
    owners = [
        (item.attrs.get("Labels") or {}).get(_OWNER_LABEL, "") for item in containers
    ]
    return [owner for owner in owners if owner.startswith(f"{os.getpid()}-")]
