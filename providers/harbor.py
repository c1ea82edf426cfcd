"""Harbor: `harbor run --env toolcell.providers.harbor:ToolcellEnvironment`."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)
from harbor.models.task.config import NetworkMode, NetworkPolicy

from toolcell.core import GuardError, InvalidInputError
from toolcell.guard import ActionGuard
from toolcell.sandbox import Mount, Network, SandboxConfig
from toolcell.tools import Records

from .cells.guarded_session import default_config, exit_code
from .cells.thread_session import ThreadSession

_REFUSED = 126
_TIMED_OUT = 124
_WORK_DIR = "/app"
_FOLDERS = ("logs", "tests", "solution", "harbor")


class ToolcellEnvironment(BaseEnvironment):
    """A task's environment in one session, whose work dir is that of the task.

    The task names its image; nothing is built. `/logs`, `/tests`, `/solution` and
    `/harbor` are folders of this machine while it runs. A command that the guard
    refuses ends with exit code 126 and the reason on its standard error; a file is a
    PermissionError. There is one user, whom `root` stands for, too.

    Args:
        backend: `subprocess` has this machine's own programs in place of the image.
            Default: `docker`.
        **options: As in BaseEnvironment.
    """

    guard: ClassVar[ActionGuard | None] = None
    """Decides about the commands and files of environments that start from now on, as
    `GuardedSession` names them. None: everything is allowed."""

    agent_id: ClassVar[str] = "harbor"
    """The agent that the guard knows."""

    records: ClassVar[Records | None] = None
    """Takes a record of each call. None: a store in memory."""

    cell: ClassVar[SandboxConfig] = default_config()
    """The cells; a task sets their image, work dir, mounts, and the cpus, memory and
    disk that it names. A task with a public network has the network of this."""

    def __init__(
        self,
        *args: Any,
        backend: str = "docker",
        **options: Any,
    ) -> None:
        self._backend = backend
        self._thread: ThreadSession | None = None
        self._folders: tempfile.TemporaryDirectory[str] | None = None
        super().__init__(*args, **options)

    @staticmethod
    def type() -> str:
        return "toolcell"

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            dynamic_network_policy=True,
        )

    def _validate_definition(self) -> None:
        compose = self.environment_dir / "docker-compose.yaml"
        if not self.task_env_config.docker_image or compose.exists():
            raise FileNotFoundError(
                "toolcell builds no images and runs no compose files: name an image of "
                "the engine as docker_image in [environment] of the task"
            )

    async def start(self, force_build: bool) -> None:
        """Open the session. Raises SandboxUnavailableError: there is no cell."""
        self._folders = tempfile.TemporaryDirectory(prefix="toolcell-")
        self._thread = await asyncio.to_thread(
            ThreadSession,
            self._config(Path(self._folders.name)),
            guard=self.guard,
            agent_id=self.agent_id,
            records=self.records,
        )
        await self._apply_network_policy(self.network_policy)
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        await self._upload_environment_dir_after_start()

    def _config(self, folders: Path) -> SandboxConfig:
        mounts = []
        for name in _FOLDERS:
            (folders / name).mkdir()
            (folders / name).chmod(0o777)
            source, target = str(folders / name), f"/{name}"
            mounts.append(Mount(source=source, target=target, read_only=False))
        asked = {
            "cpus": self._effective_cpus,
            "memory_mib": self._effective_memory_mb,
            "disk_mib": self._effective_storage_mb,
        }
        limits = {name: value for name, value in asked.items() if value is not None}
        asks = self.cell.model_dump(exclude_unset=True) | {
            "backend": self._backend,
            "limits": self.cell.limits.model_copy(update=limits),
            "mounts": tuple(mounts),
            "work_dir": self.task_env_config.workdir or _WORK_DIR,
        }
        if self._backend != "subprocess":
            asks["image"] = self.task_env_config.docker_image
        return SandboxConfig(**asks)

    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        network = Network.none
        if network_policy.network_mode == NetworkMode.PUBLIC:
            network = self.cell.network
        elif network_policy.network_mode == NetworkMode.ALLOWLIST:
            names = network_policy.allowed_hosts
            hosts = [f"{name}:{p}" for name in names for p in (80, 443)]
            network = self.cell.network.to(hosts)
        session = self._live.guarded.session
        await self._live.acall(session.set_network, network)

    async def stop(self, delete: bool) -> None:
        """End the session with all that runs in it; again: nothing."""
        if self._thread is not None:
            await asyncio.to_thread(self._thread.close)
        if self._folders is not None:
            await asyncio.to_thread(self._folders.cleanup)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a script of bash; after `timeout_sec` it ends with code 124."""
        if self._resolve_user(user) not in (None, "root", 0):
            raise ValueError(f"commands run as the cell's own user, not as {user!r}")
        try:
            result = await self._live.acall(
                self._live.guarded.exec,
                command,
                cwd=cwd or "",
                env=self._merge_env(env),
                timeout_seconds=timeout_sec,
            )
        except (GuardError, InvalidInputError) as error:
            return ExecResult(stderr=str(error), return_code=_REFUSED)
        code = _TIMED_OUT if result.status == "timeout" else exit_code(result)
        return ExecResult(stdout=result.stdout, stderr=result.stderr, return_code=code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await self._call(self._live.guarded.upload, Path(source_path), target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._call(self._live.guarded.upload, Path(source_dir), target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        data = await self._call(self._live.guarded.read_file, source_path)
        await asyncio.to_thread(Path(target_path).write_bytes, data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        with tempfile.TemporaryDirectory(prefix="toolcell-") as name:
            new = Path(name, "new")
            await self._call(self._live.guarded.download, source_dir, new)
            found = new / source_dir.lstrip("/")
            found.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree
            await asyncio.to_thread(copy, found, target_dir, dirs_exist_ok=True)

    @property
    def _live(self) -> ThreadSession:
        if self._thread is None:
            raise RuntimeError("the environment was not started")
        return self._thread

    async def _call(self, function: Any, *args: Any) -> Any:
        try:
            return await self._live.acall(function, *args)
        except GuardError as error:
            raise PermissionError(str(error)) from error
