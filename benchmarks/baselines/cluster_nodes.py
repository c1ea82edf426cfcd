"""Nodes of a cluster in their own process: settings in, records out.

A null node has no cells: a run there sleeps, or ends at once.
"""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from typing import Any, cast

import anyio

from toolcell.cluster import NodeAgent
from toolcell.sandbox import ExecutionResult, Sandbox, SandboxConfig, SandboxManager

_NEVER = 1e6


class NullSandbox:
    """Stands in for a sandbox where a node needs one."""

    notices = ()
    active_cells = 0

    def __init__(self, config: SandboxConfig, seconds: float) -> None:
        self.config = config
        self._seconds = seconds

    async def run(self, *_: Any, **__: Any) -> ExecutionResult:
        """Sleep, and say that all is well."""
        if self._seconds:
            await anyio.sleep(self._seconds)
        return ExecutionResult(status="ok")


async def main(asked: dict[str, Any]) -> None:
    """Serve nodes until the end of the input."""
    config = SandboxConfig(**asked["sandbox"])
    async with AsyncExitStack() as stack:
        records = []
        for name in asked["names"]:
            if asked["seconds"] is None:
                manager = SandboxManager(config)
                sandbox: Sandbox = await stack.enter_async_context(manager)
            else:
                sandbox = cast(Sandbox, NullSandbox(config, asked["seconds"]))
            agent = NodeAgent(
                sandbox, token=asked["token"], name=name, check_seconds=_NEVER
            )
            records.append((await stack.enter_async_context(agent)).record)
        print(json.dumps([record.model_dump() for record in records]), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    anyio.run(main, json.loads(sys.stdin.readline()))
