"""Replaces an image's VOLUMEs by empty read-only file systems.

For each volume that its image declares, an engine gives a container a new folder on
the host's disk. It is writable, whatever else is read-only, and its size has no limit.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable

from toolcell.core import SandboxUnavailableError

from ..cell.wire import terminals
from ..packages.layer_store import TARGET

_EMPTY = "ro,nosuid,nodev,noexec,size=4k,mode=0755"
_KERNELS = ("/proc", "/sys", "/dev")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the cell's own


def covers(declared: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """Return an empty, read-only file system for each volume, as tmpfs options.

    Args:
        declared: The paths of the image's volumes.
        taken: Paths where cells have other mounts, which take precedence.

    Raises:
        SandboxUnavailableError: Nothing can be mounted over one of the volumes.
    """
    places = {
        volume: "/" + posixpath.normpath(volume).lstrip("/") for volume in declared
    }
    for volume, place in places.items():
        kernels = any(f"{place}/".startswith(f"{kernel}/") for kernel in _KERNELS)
        shared = f"{place}/".startswith(f"{_SHARED_MEMORY}/")
        if not volume.startswith("/") or place == "/" or (kernels and not shared):
            raise SandboxUnavailableError(
                f"the image declares a volume at {volume!r}, where cells can have none",
                hint="build it without that VOLUME",
            )
    return {place: _EMPTY for place in places.values() if place not in taken}


def require_none(mounts: Iterable[dict[str, str]]) -> None:
    """Raise SandboxUnavailableError if a container got a volume in spite of them.

    Pseudo-terminals and packages can be volumes that cells ask for.
    """
    for mount in mounts:
        if mount.get("Type") == "volume" and mount.get("Destination") not in (
            terminals.FOLDER,
            TARGET,
        ):
            raise SandboxUnavailableError(
                f"the engine gives cells a volume at {mount.get('Destination')!r}",
                hint="build the image without a VOLUME there",
            )
