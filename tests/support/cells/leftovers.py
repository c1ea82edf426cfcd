"""What a host has of the machine: cgroups, and containers of an engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from toolcell.sandbox.backends.container_spec import OWNER_LABEL
from toolcell.sandbox.machine import (
    host_cgroups,
    own_folders,
    process_identity,
)

from ...conftest import missing


def host_groups() -> dict[str, str]:
    try:
        return host_cgroups.create()
    except OSError as error:
        missing(f"cgroups cannot be made here: {error}")


def name_groups_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process name groups as if it were in another PID namespace.

    Other hosts that start meanwhile remove groups of the dead of their own namespace.
    """
    # The kernel's numbers of namespaces have 32 bits.
    number = (1 << 32) + os.getpid()
    monkeypatch.setattr(process_identity, "pid_namespace", lambda: number)


def groups_of(process: str) -> list[str]:
    # In a container the groups of its own name may not be shown.
    places = {p for p in host_cgroups.parents().values() if os.path.isdir(p)}
    return [
        f"{place}/{name}"
        for place in places
        for name in os.listdir(place)
        if name.startswith(f"{host_cgroups.name_of(process)}-")
    ]


def folders_of(process: str) -> list[Path]:
    mark = f"{own_folders.PREFIX}{process_identity.pid_namespace()}-{process}_"
    return [
        folder for folder in own_folders.all_folders() if folder.name.startswith(mark)
    ]


def containers_of(engine: Any, process: str) -> list[str]:
    filters = {"label": f"{OWNER_LABEL}={process}"}
    return [
        container["Id"] for container in engine.containers(all=True, filters=filters)
    ]
