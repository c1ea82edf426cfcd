"""A cluster of two nodes in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from toolcell.cluster import ClusterSandbox, FixedNodes, NodeAgent, new_token
from toolcell.sandbox import SandboxConfig, SandboxManager
from toolcell.sandbox.spi import Resolver


@asynccontextmanager
async def local_cluster(
    config: SandboxConfig,
    resolver: Resolver | None = None,
    driver: tuple[str, str] | None = None,
) -> AsyncIterator[ClusterSandbox]:
    """Yield a driver of two agents, each with a manager of its own, that know it."""
    token = new_token()
    async with AsyncExitStack() as stack:
        records = []
        for name in ("first", "second"):
            manager = await stack.enter_async_context(
                SandboxManager(config, resolver=resolver)
            )
            agent = NodeAgent(
                manager,
                token=token,
                name=name,
                check_seconds=3600.0,
                drivers=dict([driver] if driver else []),
            )
            records.append((await stack.enter_async_context(agent)).record)
        nodes = FixedNodes(records)
        sandbox = ClusterSandbox(nodes, token=token, driver=driver)
        yield await stack.enter_async_context(sandbox)
