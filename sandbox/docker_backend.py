"""Cells made of Docker containers, on a local or a remote engine.

Theory of operation. A cell is one container whose entry point is the image's
own python3. The host attaches to its standard streams before it starts, sends
the supervisor's bundle over them, then frames; nothing is mounted, copied or
baked in, so a remote engine and a read-only root work alike. The stream is also
the lease: when the host's end closes, however that happens, the supervisor sees
the end of its input and exits, and the engine removes the container. Labels
name the owner, for the sweep of containers that never got that far.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread

from toolcell.core import SandboxUnavailableError

from . import docker_profile, layers, mounts, owner, runtime_probe
from .backend import CellTraits
from .bundle import bundle, framed
from .cell import aliases
from .cell_client import (
    Cell,
)
from .channel import Channel
from .config import Enforcer, IsolationLevel, Limits, SandboxConfig
from .docker_hosts import HostsFile
from .surroundings import CELL_UID, WORKDIR, cell_environment

if TYPE_CHECKING:
    import docker

T = TypeVar("T")
_LAYERS = ("mount", "pid", "net", "ipc", "uts", "read_only_root")
_REQUIRED = ("own_uid", "no_capabilities", "no_new_privileges", "seccomp")
_TIMEOUT_SECONDS = 60
_OOM_SECONDS = 2
_POOLS = 1024
_UNIX = "unix://"
_DEFAULT_HOST = "unix:///var/run/docker.sock" if os.name == "posix" else ""
_PING_SECONDS = 5.0


class DockerBackend:
    """Makes cells out of containers of one image."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._client: docker.DockerClient | None = None
        self._runtime = config.runtime
        # By its id: a name may come to mean another image, with another Python. And
        # our modules, once its Python has compiled them.
        self._image = ""
        self._code = b""
        self._image_env: list[str] = []
        self._held = runtime_probe.Held()
        self._maps_users = False
        self._hosts = HostsFile()

    @property
    def traits(self) -> CellTraits:
        held = self._held
        enforced: dict[str, Enforcer] = {
            "wall_seconds": "watchdog",
            "cpu_seconds": "watchdog",
            "output_bytes": "watchdog",
            "open_files": "rlimit",
            "memory_mb": "cgroup" if held.memory else "watchdog",
            "pids": "cgroup" if held.pids else "rlimit",
        }
        if held.memory:
            # An engine that leaves memory alone leaves CPU time alone, too.
            enforced["cpus"] = "cgroup"
        layers = [*_LAYERS]
        if self._maps_users or self._level() == "kernel":
            layers.append("user")
        if held.memory:
            layers.append("cgroup")
        return CellTraits(
            backend="docker",
            level=self._level(),
            layers=tuple(layers),
            enforced_by=enforced,
            required_layers=_REQUIRED,
        )

    def _level(self) -> IsolationLevel:
        own = docker_profile.has_own_kernel(self._runtime)
        return "kernel" if own else "container"

    async def start(self) -> None:
        """Find the engine, its runtime and the image; sweep orphans."""
        if self._config.mounts or layers.wants_packages(self._config):
            mounts.require_local(self._where())
        try:
            info = await self._call(self._connect)
            runtimes = info.get("Runtimes") or {}
            self._runtime = self._config.runtime or info.get("DefaultRuntime") or "runc"
            if self._runtime not in runtimes:
                raise SandboxUnavailableError(
                    f"the Docker engine has no runtime {self._runtime!r}",
                    hint=f"it has: {', '.join(sorted(runtimes))}",
                )
            self._maps_users = "name=userns" in (info.get("SecurityOptions") or [])
            await self._call(self._find_image)
            if self._where().startswith(_UNIX):
                self._hosts.make()
            await self._call(lambda: sweep(self._engine))
            set_up = f"{info.get('ID', '')} {runtimes[self._runtime]}"
            self._held = await self._probe(set_up)
        except BaseException:
            await self.close()
            raise

    def _where(self) -> str:
        return _address(self._config.docker_host)

    @property
    def _engine(self) -> docker.DockerClient:
        if self._client is None:
            raise SandboxUnavailableError("the backend is closed")
        return self._client

    def _connect(self) -> dict[str, Any]:
        self._client = connect(self._config.docker_host)
        info: dict[str, Any] = self._client.info()
        return info

    def _find_image(self) -> None:
        api: Any = self._engine.api
        image = api.inspect_image(self._config.image)
        self._image = image["Id"]
        self._image_env = (image.get("Config") or {}).get("Env") or []

    async def _probe(self, set_up: str) -> runtime_probe.Held:
        held = runtime_probe.recall(set_up)
        if held is None:
            held = await runtime_probe.probe(self.create_cell)
            runtime_probe.remember(set_up, held)
        return held

    async def _call(self, function: Callable[[], T]) -> T:
        """Run a blocking engine call in a thread; give its errors our names."""
        try:
            return await anyio.to_thread.run_sync(self._knock_first, function)
        except SandboxUnavailableError:
            raise
        except Exception as error:
            raise explain(error, self._config) from error

    def _knock_first(self, function: Callable[[], T]) -> T:
        """Call an engine that has been connected to before; it may have gone."""
        try:
            _knock(self._where())
        except OSError as error:
            raise _nobody_answers(error, self._config) from error
        return function()

    async def create_cell(self, limits: Limits) -> Cell:
        made: dict[str, str] = {}
        try:
            # Not to be abandoned half-way: the container would have no owner.
            with anyio.CancelScope(shield=True):
                sock = await self._call(lambda: self._start_container(limits, made))
        except SandboxUnavailableError:
            if "id" in made:
                await ContainerProcess(self, made["id"]).kill()
            raise
        channel = Channel(sock, multiplexed=True)
        process = ContainerProcess(self, made["id"])
        keep = None if self._code else self._keep_code
        cell = Cell(channel, process, self.traits, self._settings(limits), keep)
        try:
            await channel.send(self._code or bundle())
        except BaseException:
            await cell.kill()
            raise
        return cell

    def _keep_code(self, modules: bytes) -> None:
        """Spare the next cells of the image what the first has compiled."""
        self._code = framed(modules)

    def _start_container(self, limits: Limits, made: dict[str, str]) -> socket.socket:
        try:
            return self._start_one(limits, made)
        except Exception as error:
            if not self._hosts.is_to_blame(error):
                raise
        self._hosts.remove()
        if "id" in made:
            _remove(self._engine, made.pop("id"))
        return self._start_one(limits, made)

    def _start_one(self, limits: Limits, made: dict[str, str]) -> socket.socket:
        # The SDK leaves its low-level client without types.
        api: Any = self._engine.api
        body = docker_profile.container_arguments(
            self._image,
            self._image_env,
            self._runtime,
            limits,
            [
                *mounts.follow(mount.bind for mount in self._config.mounts),
                *layers.store_binds(self._config),
                *self._hosts.binds(),
            ],
        )
        made["id"] = api.create_container_from_config(body)["Id"]
        options = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        attached = api.attach_socket(made["id"], params=options)
        sock = own_socket(attached)
        try:
            api.start(made["id"])
        except BaseException:
            sock.close()
            raise
        return sock

    def _settings(self, limits: Limits) -> dict[str, Any]:
        rlimits = {"open_files": limits.open_files}
        if not self._held.pids:
            rlimits["processes"] = limits.pids
        return {
            "uid": CELL_UID,
            "workdir": WORKDIR,
            "env": cell_environment(self._config.env, WORKDIR),
            "aliases": aliases.FOLDER,
            "node": "node",
            "rlimits": rlimits,
            "address_space": 0 if self._held.memory else limits.memory_mb << 20,
            "affinity": 0,
            "require": list(_REQUIRED),
        }

    async def check(self) -> None:
        api: Any = self._engine.api
        await self._call(lambda: api.inspect_image(self._image))

    async def remove(self, container_id: str) -> None:
        """Kill and remove a container; one that is gone already is fine."""
        client = self._client
        if client is None:
            return
        remove = functools.partial(_remove, client, container_id)
        with contextlib.suppress(SandboxUnavailableError):
            await anyio.to_thread.run_sync(self._knock_first, remove)

    async def told_of_memory(self, container_id: str, since: float) -> bool:
        """Tell whether the engine says that memory ran out in a container."""
        if not self._held.memory:
            return False
        api: Any = self._engine.api
        now = time.time()
        began = int(now - (time.monotonic() - since))
        wanted = {"container": [container_id], "event": ["oom"]}

        def ask() -> bool:
            # It says so a little later than the container has ended.
            until = int(now) + _OOM_SECONDS
            return any(api.events(since=began, until=until, filters=wanted))

        try:
            return await self._call(ask)
        except SandboxUnavailableError:
            return False

    async def close(self) -> None:
        self._hosts.remove()
        client, self._client = self._client, None
        if client is not None:
            await anyio.to_thread.run_sync(client.close)


class ContainerProcess:
    """The container of one cell."""

    def __init__(self, backend: DockerBackend, container_id: str) -> None:
        self._backend = backend
        self._container_id = container_id

    async def killed_for_memory(self, known: int, since: float) -> bool:
        return await self._backend.told_of_memory(self._container_id, since)

    async def kill(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._backend.remove(self._container_id)


def connect(docker_host: str | None) -> docker.DockerClient:
    """Return a client of the engine at `docker_host`, DOCKER_HOST or the default.

    Raises:
        docker.errors.DockerException: Nothing answers there.
        OSError: The same, of a Unix socket.
    """
    _knock(_address(docker_host))
    # Not for who has no engine: they take a third as long as all else that is imported.
    import docker
    import docker.utils

    where = docker.utils.kwargs_from_env()
    if docker_host is not None:
        where = {"base_url": docker_host}
    # The SDK keeps one pool per URL, thus per container, and closes the oldest even
    # in use; so many pools, and no idle connection in any of them.
    client = docker.DockerClient(timeout=_TIMEOUT_SECONDS, num_pools=_POOLS, **where)
    client.api.headers["Connection"] = "close"
    return client


def _address(docker_host: str | None) -> str:
    return docker_host or os.environ.get("DOCKER_HOST") or _DEFAULT_HOST


def _knock(where: str) -> None:
    """Raise OSError if the engine's Unix socket is dead.

    The SDK forgets to close a socket that could not connect.
    """
    if where.startswith(_UNIX):
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(where.removeprefix(_UNIX))


def sweep(client: docker.DockerClient) -> list[str]:
    """Remove the containers of this machine's dead owners; return their ids."""
    removed = []
    for entry in client.api.containers(
        all=True, filters={"label": docker_profile.OWNER_LABEL}
    ):
        marks = entry["Labels"]
        here = marks.get(docker_profile.PLACE_LABEL) == owner.place()
        if here and not owner.lives(marks[docker_profile.OWNER_LABEL]):
            _remove(client, entry["Id"])
            removed.append(entry["Id"])
    return removed


def _remove(client: docker.DockerClient, container_id: str) -> None:
    import docker.errors

    try:
        client.api.remove_container(container_id, force=True, v=True)
    except docker.errors.NotFound:
        return
    except docker.errors.APIError as error:
        if error.status_code != 409:
            return
        # The engine is at it already; wait until it is done.
        with contextlib.suppress(Exception):
            client.api.wait(container_id, timeout=10, condition="removed")
    except Exception:  # noqa: BLE001 - the SDK and its transport raise anything
        # An engine that is gone cannot be asked; its containers end with their
        # streams, and the next start sweeps.
        return


def own_socket(attached: Any) -> socket.socket:
    """Return a plain socket for an attach stream, ours to close."""
    raw = getattr(attached, "_sock", attached)
    if type(raw) is socket.socket:
        ours = socket.socket(fileno=os.dup(raw.fileno()))
        response = getattr(attached, "_response", None)
        raw.close()
        if response is not None:
            response.close()
        return ours
    # TLS and SSH streams have no descriptor that can be polled for plaintext.
    ours, theirs = socket.socketpair()
    for source, target in ((raw, theirs), (theirs, raw)):
        threading.Thread(target=_relay, args=(source, target), daemon=True).start()
    return ours


def _relay(source: Any, target: Any) -> None:
    with contextlib.suppress(OSError, ValueError):
        while data := source.recv(65_536):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(Exception):
            end.close()


def explain(error: Exception, config: SandboxConfig) -> SandboxUnavailableError:
    """Turn an error of the Docker SDK into ours, with what to do about it."""
    import docker.errors

    text = getattr(error, "explanation", None) or str(error)
    if isinstance(error, docker.errors.ImageNotFound):
        return SandboxUnavailableError(
            f"the Docker engine has no image {config.image!r}",
            hint=f"`docker pull {config.image}`, or `toolcell images build` and "
            "its tag as `image`",
        )
    if isinstance(error, docker.errors.APIError) and "python3" in str(text):
        return SandboxUnavailableError(
            f"the image {config.image!r} has no python3",
            hint="use an image with python3 3.8 or newer on its PATH",
        )
    if isinstance(error, docker.errors.APIError):
        return SandboxUnavailableError(f"the Docker engine refused: {text}")
    return _nobody_answers(text, config)


def _nobody_answers(
    error: Exception | str, config: SandboxConfig
) -> SandboxUnavailableError:
    place = config.docker_host or os.environ.get("DOCKER_HOST") or "the local socket"
    details = {"error": str(error)}
    if isinstance(error, PermissionError):
        return SandboxUnavailableError(
            f"this user may not speak to the Docker engine at {place}",
            hint="join the group of its socket, mostly `docker`, and log in again",
            details=details,
        )
    other = "use backend='subprocess'"
    if config.names_docker:
        other = "leave `runtime` and `image` out"
    return SandboxUnavailableError(
        f"no Docker engine answers at {place}",
        hint=f"start it, set DOCKER_HOST, or {other}",
        details=details,
    )
