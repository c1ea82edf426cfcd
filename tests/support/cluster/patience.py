"""Drivers that wait for nodes until a test says that it was long enough."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from toolcell.cluster import ClusterSandbox
from toolcell.cluster.driver.nodes import NOT_ANSWERED
from toolcell.core import SandboxUnavailableError

from ..polling import until

LONG = 60.0
"""Seconds to wait for a node, for drivers that are to find one, or to be told."""


def givers(sandbox: ClusterSandbox) -> set[str]:
    """Return the nodes that have told how many places they give to a driver."""
    return {each.record.name for each in sandbox._nodes.open if each.credit}


def wait_briefly(sandbox: ClusterSandbox) -> None:
    """Let the runs of an open driver wait for nodes for half a second from now on."""
    sandbox._nodes._wait_seconds = 0.5
    sandbox._nodes._resize()


async def refusal(
    sandbox: ClusterSandbox,
    when: Callable[[ClusterSandbox], bool] = lambda sandbox: (
        sandbox._nodes._why_none != NOT_ANSWERED
    ),
) -> SandboxUnavailableError:
    """Return the error of a driver that waits until it knows why it finds no node.

    Args:
        sandbox: Not open yet; its `wait_seconds` are long.
        when: Says whether the driver knows; else once it was refused.
    """
    errors: list[SandboxUnavailableError] = []

    async def run() -> None:
        with pytest.raises(SandboxUnavailableError) as caught:
            async with sandbox:
                await sandbox.run("1")
        errors.append(caught.value)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await until(lambda: hasattr(sandbox, "_nodes") and when(sandbox))
        wait_briefly(sandbox)
    return errors[0]
