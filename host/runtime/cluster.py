"""The cluster that a configuration names."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from toolcell.core import ConfigError

from ..config.cluster import ClusterConfig
from ..config.host_config import HostConfig
from ..config.secrets import read_secret

if TYPE_CHECKING:
    from toolcell.cluster import (
        ClusterAdmin,
        ClusterSandbox,
        NodeAgent,
        RedisDirectory,
    )
    from toolcell.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class ClusterParts:
    """The directory and the token of a cluster, and what is made of them."""

    settings: ClusterConfig
    directory: RedisDirectory
    token: str = field(repr=False)

    def sandbox(self) -> ClusterSandbox:
        """Return a driver, to be opened."""
        from toolcell.cluster import ClusterSandbox

        return ClusterSandbox(
            self.directory,
            token=self.token,
            wait_seconds=self.settings.wait_seconds,
            lost_seconds=self.settings.lost_seconds,
            retry_lost=self.settings.retry_lost,
        )

    def agent(self, sandbox: Sandbox) -> NodeAgent:
        """Return the agent of this machine, to be opened."""
        from toolcell.cluster import NodeAgent

        settings = self.settings
        host, _, port = settings.listen.rpartition(":")
        return NodeAgent(
            sandbox,
            token=self.token,
            name=settings.node or platform.node() or "node",
            host=host.strip("[]"),
            port=int(port),
            public_host=settings.public_host,
            directory=self.directory,
            lost_seconds=settings.lost_seconds,
            check_seconds=settings.check_seconds,
        )

    def admin(self) -> ClusterAdmin:
        """Return what looks at the nodes."""
        from toolcell.cluster import ClusterAdmin

        return ClusterAdmin(self.directory, token=self.token)


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
    from toolcell.cluster import RedisDirectory

    known = os.environ if environ is None else environ
    url = read_secret(settings.directory, known).get_secret_value()
    token = read_secret(settings.token, known).get_secret_value()
    try:
        directory = RedisDirectory(url, token=token, name=settings.name)
    except ConfigError as error:
        # The message of redis repeats the URL, and with it a password.
        raise ConfigError(
            f"cluster.directory ({settings.directory}) or cluster.token "
            f"({settings.token}) cannot be used",
            hint=error.hint,
        ) from None
    try:
        yield ClusterParts(settings, directory, token)
    finally:
        directory.close()


async def open_sandbox(
    config: HostConfig, environ: Mapping[str, str], stack: AsyncExitStack
) -> Sandbox:
    """Open the sandbox of a host: that of the cluster, if one is configured.

    Raises:
        ToolcellError: It cannot be opened.
    """
    if config.cluster is None:
        from toolcell.sandbox import SandboxManager

        return await stack.enter_async_context(SandboxManager(config.sandbox))
    parts = stack.enter_context(cluster_parts(config, environ))
    return await stack.enter_async_context(parts.sandbox())
