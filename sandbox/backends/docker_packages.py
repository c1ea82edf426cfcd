"""Packages for engines that see no files of this machine: a volume, filled by copying.

Theory of operation. The volume stands for the folder of layers and is as unlistable. A
layer is copied into it through a container that is never started. A mark beside it says
that the whole of it is there, so that later hosts copy nothing. Cells mount the volume
read-only. Layers stay in it until somebody removes it: it is a cache.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolcell.core import SandboxUnavailableError

from ..config.mount_rules import Bind
from ..config.settings import SandboxConfig
from ..machine import process_identity
from ..packages.layer_store import TARGET, UNLISTED, store_binds
from . import container_spec, docker_engine

if TYPE_CHECKING:
    import docker

_PREFIX = "toolcell-packages-"
_MARK = ".whole"


class PackageMounts:
    """The way in which cells see packages: the folder itself, or a copy in a volume.

    Args:
        config: The configuration of the cells.
    """

    def __init__(self, config: SandboxConfig) -> None:
        self._binds = store_binds(config)
        self._volume: PackageVolume | None = None

    def binds(self) -> list[Bind]:
        """Return the mount of the folder; empty if there is none, or a volume."""
        return [] if self._volume else self._binds

    def volumes(self) -> list[dict[str, Any]]:
        """Return the mount of the volume; empty if there is none."""
        return [self._volume.mount()] if self._volume else []

    def is_to_blame(self, error: SandboxUnavailableError) -> bool:
        """Return True if an engine refused the folder, as it has other files."""
        return any(bind.source in error.message for bind in self.binds())

    def copy_from_now_on(self) -> None:
        """Take a volume: the engine sees no files of this machine."""
        for bind in self._binds:
            self._volume = PackageVolume(bind.source)

    def copy(
        self, client: docker.DockerClient, image: str, layer: Path, *, finished: bool
    ) -> None:
        """Copy a layer to where cells see it, unless they see the folder itself."""
        if self._volume:
            self._volume.copy(client, image, layer, finished=finished)


class PackageVolume:
    """The volume of one user's layers on one engine; the engine makes it when needed.

    Args:
        layers: The folder of layers here.
    """

    def __init__(self, layers: str) -> None:
        facts = f"{process_identity.machine_id()} {os.geteuid()} {layers}"
        self.name = _PREFIX + hashlib.sha256(facts.encode()).hexdigest()[:16]

    def mount(self, *, read_only: bool = True) -> dict[str, Any]:
        """Return the mount of it, as the engine's create call takes it."""
        return {
            "Type": "volume",
            "Source": self.name,
            "Target": TARGET,
            "ReadOnly": read_only,
            "VolumeOptions": {"NoCopy": True},
        }

    def copy(
        self, client: docker.DockerClient, image: str, layer: Path, *, finished: bool
    ) -> None:
        """Copy a layer into it, unless it is there; the caller waits.

        Args:
            client: The client for slow calls.
            image: An image of the engine, of which nothing is run.
            layer: The folder of the layer here.
            finished: True if nothing will be added to the layer any more.

        Raises:
            docker.errors.APIError: The engine refused.
        """
        api: Any = client.api
        made = api.create_container_from_config(self._never_started(image))["Id"]
        try:
            if not self._has(api, made, layer.name + _MARK):
                with _archive_of(layer, finished=finished) as archive:
                    api.put_archive(made, "/", archive)
        finally:
            docker_engine.remove(client, made)

    def _never_started(self, image: str) -> dict[str, Any]:
        return {
            "Image": image,
            "Entrypoint": ["/"],
            "Labels": container_spec.labels(),
            "NetworkDisabled": True,
            "HostConfig": {
                "NetworkMode": "none",
                "Mounts": [self.mount(read_only=False)],
            },
        }

    def _has(self, api: Any, container: str, name: str) -> bool:
        import docker.errors

        try:
            stream, _ = api.get_archive(container, f"{TARGET}/{name}")
        except docker.errors.NotFound:
            return False
        stream.close()
        return True


def _archive_of(layer: Path, *, finished: bool) -> Any:
    """Return an archive of the folder of layers with this one, as an open file."""
    place = TARGET.lstrip("/")
    file = tempfile.TemporaryFile()
    with tarfile.open(fileobj=file, mode="w") as archive:
        folder = tarfile.TarInfo(place)
        folder.type, folder.mode = tarfile.DIRTYPE, UNLISTED
        archive.addfile(folder)
        archive.add(layer, f"{place}/{layer.name}", filter=_as_root)
        if finished:
            archive.addfile(
                tarfile.TarInfo(f"{place}/{layer.name}{_MARK}"), io.BytesIO()
            )
    file.seek(0)
    return file


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
