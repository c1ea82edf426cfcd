"""The cluster that a configuration names."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from toolcell.core import ConfigError
from toolcell.core.secrets import read_secret

from ..config.cluster import ClusterConfig
from ..config.host_config import HostConfig
from ..operator.event_bus import EventBus

if TYPE_CHECKING:
    from toolcell.cluster import ClusterSandbox, NodeAgent, RayDirectory, RedisDirectory
    from toolcell.cluster.spi import ClusterAdmin
    from toolcell.sandbox import Sandbox, SandboxConfig

_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ClusterParts:
    """The directory and the token of a cluster, and what is made of them."""

    settings: ClusterConfig
    directory: RedisDirectory | RayDirectory
    token: str = field(repr=False)
    environ: Mapping[str, str] = field(repr=False)
    """The environment, from which keys of drivers may be read."""

    def _key(self, driver: str) -> str:
        reference = self.settings.drivers[driver]
        return read_secret(reference, self.environ).get_secret_value()

    def sandbox(self) -> ClusterSandbox:
        """Return a driver, to be opened. Raises ConfigError: its key is not usable."""
        from toolcell.cluster import ClusterSandbox

        name = self.settings.driver
        return ClusterSandbox(
            self.directory,
            token=self.token,
            wait_seconds=self.settings.wait_seconds,
            lost_seconds=self.settings.lost_seconds,
            retry_lost=self.settings.retry_lost,
            image=self.settings.image,
            driver=None if name is None else (name, self._key(name)),
        )

    def agent(self, sandbox: Sandbox) -> NodeAgent:
        """Return the agent of this machine, to be opened.

        Raises:
            ConfigError: A key of a driver, or a credential's agents, are not usable.
        """
        from toolcell.cluster import NodeAgent, RedisDirectory

        settings = self.settings
        assert isinstance(self.directory, RedisDirectory)
        host, _, port = settings.listen.rpartition(":")
        return NodeAgent(
            sandbox,
            token=self.token,
            name=settings.node or platform.node() or "node",
            host=host.strip("[]"),
            port=int(port),
            public_host=settings.public_host,
            public_port=settings.public_port,
            directory=self.directory,
            lost_seconds=settings.lost_seconds,
            check_seconds=settings.check_seconds,
            drivers={name: self._key(name) for name in settings.drivers},
        )

    async def start_on_ray(self, config: SandboxConfig) -> None:
        """Have a node on each machine of Ray.

        Raises:
            ConfigError: It has credentials, or the nodes have other settings.
            SandboxUnavailableError: Ray does not answer.
        """
        from toolcell.cluster import NodeSettings, RayDirectory

        refuse_credentials_on_ray(config)
        assert isinstance(self.directory, RayDirectory)
        settings = NodeSettings(
            sandbox=config,
            lost_seconds=self.settings.lost_seconds,
            check_seconds=self.settings.check_seconds,
        )
        await self.directory.start(settings)

    async def stop_on_ray(self, seconds: float) -> None:
        """Wait until all nodes have ended, for some seconds; start no more on Ray.

        Nothing, where nodes are not started by Ray. Raises SandboxUnavailableError.
        """
        from toolcell.cluster import RayDirectory

        if isinstance(self.directory, RayDirectory):
            with anyio.move_on_after(seconds):
                while await self.directory.nodes():  # noqa: ASYNC110 - it has no event
                    await anyio.sleep(_LOOK_SECONDS)
            await self.directory.stop()

    def admin(self) -> ClusterAdmin:
        """Return what looks at the nodes."""
        from toolcell.cluster.spi import ClusterAdmin

        return ClusterAdmin(self.directory, token=self.token)


def refuse_credentials_on_ray(config: SandboxConfig) -> None:
    """Raise ConfigError if the nodes of Ray would have credentials."""
    if config.credentials:
        raise ConfigError(
            "nodes on Ray have no credentials",
            hint="leave out sandbox.credentials, or use cluster.directory",
        )


@contextmanager
def cluster_parts(
    config: HostConfig, environ: Mapping[str, str] | None = None
) -> Iterator[ClusterParts]:
    """Yield the parts of the cluster in `[cluster]`; the directory is closed after.

    Args:
        config: The configuration.
        environ: The environment, from which `env:` secrets are read; default that of
            this process.

    Raises:
        ConfigError: There is no such table, a secret is missing, or not usable.
    """
    settings = config.cluster
    if settings is None:
        raise ConfigError(
            "the configuration has no [cluster]", hint="see docs/cluster.md"
        )
    known = os.environ if environ is None else environ
    directory, token = _directory(settings, known)
    try:
        yield ClusterParts(settings, directory, token, known)
    finally:
        directory.close()


def _directory(
    settings: ClusterConfig, environ: Mapping[str, str]
) -> tuple[RedisDirectory | RayDirectory, str]:
    from toolcell.cluster import RayDirectory, RedisDirectory

    if settings.address is not None:
        machines = RayDirectory(settings.address, name=settings.name)
        return machines, machines.token
    assert settings.directory is not None
    assert settings.token is not None
    url = read_secret(settings.directory, environ).get_secret_value()
    token = read_secret(settings.token, environ).get_secret_value()
    try:
        return RedisDirectory(url, token=token, name=settings.name), token
    except ConfigError as error:
        # The message of redis repeats the URL, and with it a password.
        raise ConfigError(
            f"cluster.directory ({settings.directory}) or cluster.token "
            f"({settings.token}) cannot be used",
            hint=error.hint,
        ) from None


async def open_sandbox(
    config: HostConfig,
    environ: Mapping[str, str],
    stack: AsyncExitStack,
    event_bus: EventBus,
) -> Sandbox:
    """Open the sandbox of a host: that of the cluster, if one is configured.

    Args:
        config: The configuration.
        environ: The environment, from which `env:` secrets are read.
        stack: Closes it again.
        event_bus: Publish events of its cells, unless they are those of a cluster.

    Raises:
        ToolcellError: It cannot be opened.
    """
    if config.cluster is None:
        from toolcell.sandbox import SandboxManager

        manager = SandboxManager(config.sandbox)
        event_bus.follow_cells(manager)
        return await stack.enter_async_context(manager)
    parts = stack.enter_context(cluster_parts(config, environ))
    return await stack.enter_async_context(parts.sandbox())
