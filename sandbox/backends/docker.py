"""Cells made of Docker containers, on a local or a remote engine.

Theory of operation. A cell is one container whose entry point is the image's own
python3. The host attaches to its standard streams before it starts, sends the
supervisor's bundle over them, and then frames. Nothing is mounted, copied or baked in,
so remote engines and read-only roots work alike. The stream is also the lease: when the
host's end closes, however that happens, the supervisor sees the end of its input and
exits, and the engine removes the container. Labels name the owner, so that containers
that never got that far can be swept.
"""

from __future__ import annotations

import logging
import math
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from toolcell.core import SandboxUnavailableError

from ..cell.wire import aliases
from ..cell.wire.contract import FOLDERS
from ..client.cell import Cell
from ..client.channel import Channel
from ..client.handshake import send_first
from ..client.types import CellTraits
from ..config import mount_rules
from ..config.host_rules import hosts_file
from ..config.settings import IsolationLevel, Limits, SandboxConfig, enforcers
from . import (
    container_spec,
    docker_address,
    docker_engine,
    docker_volumes,
    limit_probe,
)
from .cell_bundle import bundle, framed
from .cell_settings import cell_environment, cell_settings
from .docker_creation import ContainerCreation
from .docker_hosts import HostsFile
from .docker_packages import PackageMounts

if TYPE_CHECKING:
    import docker

T = TypeVar("T")
_LAYERS = ("mount", "pid", "net", "ipc", "uts", "read_only_root")
_REQUIRED = ("own_uid", "no_capabilities", "no_new_privileges", "seccomp")
_OPEN_ANOTHER = "open a new SandboxManager"
_OOM_SECONDS = 2
_REMOVE_SECONDS = 10.0
_log = logging.getLogger(__name__)


class DockerBackend:
    """Makes cells out of containers of one image.

    It speaks to the engine through two clients: one for questions, which time out after
    five seconds, and one for making and removing containers, which may take longer. An
    engine that stops answering fails the call, never the event loop. The image is
    pinned by its id at `start`.

    Args:
        config: Names the engine, the image and the runtime.
    """

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._client: docker.DockerClient | None = None
        self._maker: docker.DockerClient | None = None
        self._closed = False
        self._runtime = config.runtime
        # The id, as a name may come to mean another image, with another Python; and our
        # modules, once its Python has compiled them.
        self._image = ""
        self._code = b""
        self._image_env: list[str] = []
        self._covers: dict[str, str] = {}
        self._enforced = limit_probe.EnforcedLimits()
        self._maps_users = False
        self._hosts = HostsFile(hosts_file(config.network.hosts))

    @property
    def traits(self) -> CellTraits:
        held = self._enforced
        # An engine that leaves memory alone leaves CPU time alone, too.
        by_engine = {"memory_mib": held.memory, "cpus": held.memory, "pids": held.pids}
        cgroup = [name for name, is_held in by_engine.items() if is_held]
        layers = [*_LAYERS]
        if self._maps_users or self._level() == "kernel":
            layers.append("user")
        if held.memory:
            layers.append("cgroup")
        return CellTraits(
            backend="docker",
            level=self._level(),
            layers=tuple(layers),
            enforced_by=enforcers(cgroup=cgroup, missing=("cpus",)),
            image=self._image,
        )

    def _level(self) -> IsolationLevel:
        own = container_spec.has_own_kernel(self._runtime)
        return "kernel" if own else "container"

    async def start(self) -> None:
        """Find the engine, its runtime and the image; begin to remove orphans.

        Raises:
            SandboxUnavailableError: One of them is missing, or does not work.
        """
        if self._config.mounts or self._config.npm:
            mount_rules.require_local(self._where())
        self._packages = PackageMounts(self._config)
        if not mount_rules.is_local(self._where()):
            self._packages.copy_from_now_on()
        try:
            # On a busy machine it may take longer than an engine has to answer.
            await self._call(docker_engine.import_sdk, math.inf)
            info = await self._ask(self._connect)
            runtimes = info.get("Runtimes") or {}
            self._runtime = self._config.runtime or info.get("DefaultRuntime") or "runc"
            if self._runtime not in runtimes:
                raise SandboxUnavailableError(
                    f"the Docker engine has no runtime {self._runtime!r}",
                    hint=f"it has: {', '.join(sorted(runtimes))}",
                )
            self._maps_users = "name=userns" in (info.get("SecurityOptions") or [])
            await self._ask(self._find_image)
            if self._where().startswith(docker_address.UNIX):
                self._hosts.make()
            orphans = await self._ask(lambda: docker_engine.orphans(self._engine))
            if orphans:
                # In the background, as an engine may take long.
                threading.Thread(
                    target=docker_engine.remove_all,
                    args=(self._makes, orphans),
                    daemon=True,
                ).start()
            set_up = f"{info.get('ID', '')} {runtimes[self._runtime]}"
            self._enforced = await self._probe(set_up)
        except BaseException:
            await self.aclose()
            raise

    def _where(self) -> str:
        return docker_address.address(self._config.docker_host)

    @property
    def _engine(self) -> docker.DockerClient:
        if self._client is None:
            raise SandboxUnavailableError("the backend is closed", hint=_OPEN_ANOTHER)
        return self._client

    @property
    def _makes(self) -> docker.DockerClient:
        if self._maker is None:
            raise SandboxUnavailableError("the backend is closed", hint=_OPEN_ANOTHER)
        return self._maker

    def _connect(self) -> dict[str, Any]:
        host = self._config.docker_host
        self._client = client = docker_engine.connect(host)
        version: str = client.api.api_version
        self._maker = docker_engine.connect(host, docker_engine.SLOW_SECONDS, version)
        if self._closed:
            # The caller has given up meanwhile.
            self._disconnect()
            raise SandboxUnavailableError("the backend is closed", hint=_OPEN_ANOTHER)
        info: dict[str, Any] = client.info()
        return info

    def _find_image(self) -> None:
        api: Any = self._engine.api
        image = api.inspect_image(self._config.image)
        settings = image.get("Config") or {}
        in_memory = container_spec.in_memory(self._config.work_dir)
        self._covers = docker_volumes.covers(
            settings.get("Volumes") or (),
            {*in_memory, *(bind.target for bind in self._binds())},
        )
        self._image = image["Id"]
        self._image_env = settings.get("Env") or []

    async def _probe(self, set_up: str) -> limit_probe.EnforcedLimits:
        held = limit_probe.load_cached(set_up)
        if held is None:
            held = await limit_probe.probe(self.create_cell)
            limit_probe.save_cached(set_up, held)
        return held

    async def _ask(self, question: Callable[[], T]) -> T:
        """Run a question to the engine, for at most five seconds."""
        return await self._call(question, docker_engine.QUICK_SECONDS)

    async def _call(
        self,
        function: Callable[[], T],
        seconds: float,
        give_up: Callable[[], None] | None = None,
    ) -> T:
        """Run a blocking engine call in a thread.

        Args:
            function: Calls the engine.
            seconds: The time limit.
            give_up: Called when the time is over or the caller is cancelled.

        Raises:
            SandboxUnavailableError: The engine failed, or did not answer in time.
        """
        try:
            with anyio.move_on_after(seconds):
                return await docker_engine.in_thread(
                    lambda: self._call_if_reachable(function), give_up
                )
        except SandboxUnavailableError:
            raise
        except Exception as error:
            raise docker_engine.explain(error, self._config) from error
        raise docker_engine.silent(seconds, self._config)

    def _call_if_reachable(self, function: Callable[[], T]) -> T:
        """Call `function` if the engine still accepts connections."""
        try:
            docker_engine.probe_socket(self._where())
        except OSError as error:
            raise docker_engine.nobody_answers(error, self._config) from error
        return function()

    async def create_cell(self, limits: Limits) -> Cell:
        try:
            sock, container_id = await self._make(limits)
        except SandboxUnavailableError as error:
            if self._hosts.is_to_blame(error):
                self._hosts.remove()
                _require_own_files(self._config)
            elif not self._packages.is_to_blame(error):
                raise
            self._packages.copy_from_now_on()
            sock, container_id = await self._make(limits)
        channel = Channel(sock, multiplexed=True)
        process = ContainerProcess(self, container_id)
        keep = None if self._code else self._keep_code
        cell = Cell(channel, process, self.traits, self._settings(limits), keep)
        try:
            await send_first(channel, self._code or bundle())
        except BaseException:
            await cell.kill()
            raise
        return cell

    async def _make(self, limits: Limits) -> tuple[socket.socket, str]:
        making = ContainerCreation(
            self._makes, self._arguments(limits), bool(self._covers)
        )
        sock = await self._call(making.run, docker_engine.SLOW_SECONDS, making.give_up)
        return sock, making.container_id

    def _keep_code(self, modules: bytes) -> None:
        """Keep modules that a cell compiled, for the next cells of the image."""
        self._code = framed(modules)

    def _arguments(self, limits: Limits) -> dict[str, Any]:
        return container_spec.container_arguments(
            self._image,
            self._image_env,
            self._runtime,
            limits,
            self._binds(),
            self._covers | container_spec.trusted(self._config.network.inspect),
            self._config.work_dir,
            self._packages.volumes(),
        )

    def _binds(self) -> list[mount_rules.Bind]:
        # First what no other machine has: where the engine does not find it, the paths
        # of the others may lead to something else.
        return [
            *self._hosts.binds(),
            *mount_rules.follow(mount.bind for mount in self._config.mounts),
            *self._npm_binds(),
            *self._packages.binds(),
        ]

    def _npm_binds(self) -> list[mount_rules.Bind]:
        if not self._config.npm:
            return []
        from ..packages.npm_installer import npm_binds

        return npm_binds(self._config)

    def _settings(self, limits: Limits) -> dict[str, Any]:
        work_dir = self._config.work_dir
        return cell_settings(
            self._config,
            limits,
            self.traits.enforced_by,
            require=_REQUIRED,
            memory_folders=container_spec.in_memory(work_dir),
            own_kernel=container_spec.has_own_kernel(self._runtime),
            env=cell_environment(
                self._config, work_dir, container_spec.path_of(self._image_env)
            ),
            aliases=aliases.FOLDER,
            node="node",
            renews=FOLDERS if self._config.programs_per_cell > 1 else "",
            folders=container_spec.writable(work_dir),
        )

    async def show_layer(self, layer: Path, *, finished: bool) -> None:
        await self._call(
            lambda: self._packages.copy(
                self._makes, self._image, layer, finished=finished
            ),
            self._config.package_rules.seconds,
        )

    async def check(self) -> None:
        api: Any = self._engine.api
        await self._ask(lambda: api.inspect_image(self._image))

    async def remove(self, container_id: str) -> None:
        """Kill and remove a container; a missing one is fine."""
        client = self._maker
        if client is None:
            return
        try:
            await self._call(
                lambda: docker_engine.remove(client, container_id), _REMOVE_SECONDS
            )
        except SandboxUnavailableError as error:
            _log.error("the cell %s is lost: %s", container_id[:12], error.message)

    async def reported_oom(self, container_id: str, since: float) -> bool:
        """Return True if the engine reports an OOM kill in a container."""
        # A backend that is closed ended its cells itself.
        if not self._enforced.memory or self._client is None:
            return False
        api: Any = self._client.api
        now = time.time()
        # A number of seconds alone would take in earlier kills.
        began = f"{now - (time.monotonic() - since):.9f}"
        wanted = {"container": [container_id], "event": ["oom"]}

        def ask() -> bool:
            # The event may follow the end of the container.
            until = int(now) + _OOM_SECONDS
            return any(api.events(since=began, until=until, filters=wanted))

        try:
            return await self._ask(ask)
        except SandboxUnavailableError:
            return False

    async def aclose(self) -> None:
        self._closed = True
        self._hosts.remove()
        self._disconnect()

    def _disconnect(self) -> None:
        clients = self._client, self._maker
        self._client = self._maker = None
        for client in clients:
            if client is not None:
                client.close()


def _require_own_files(config: SandboxConfig) -> None:
    """Refuse mounts: the engine has other files, maybe of that name.

    Raises:
        SandboxUnavailableError: There are mounts, and this is Linux. Elsewhere the
            engine's machine shows some folders of this one.
    """
    if (config.mounts or config.npm) and sys.platform == "linux":
        raise SandboxUnavailableError(
            "the Docker engine has other files than this process, so it can show "
            "cells no mounts, and no packages of npm, from here",
            hint="in a container with the engine's socket: have one folder of the "
            "engine's machine at the same path here, and name it as TMPDIR; or "
            "pass data as files",
            details={"reason": "files_not_shared"},
        )


class ContainerProcess:
    """The container of one cell.

    Args:
        backend: Kills it.
        container_id: Its id.
    """

    def __init__(self, backend: DockerBackend, container_id: str) -> None:
        self._backend = backend
        self._container_id = container_id

    async def killed_for_memory(self, known: int, since: float) -> bool:
        return await self._backend.reported_oom(self._container_id, since)

    async def kill(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._backend.remove(self._container_id)
