"""A node in a process of its own: one line of settings in, its record out."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import anyio

from toolcell.cluster import NodeAgent, RedisDirectory
from toolcell.sandbox import SandboxConfig, SandboxManager


async def main(asked: dict[str, Any]) -> None:
    directory = RedisDirectory(asked["url"], token=asked["token"], seconds=30.0)
    async with (
        SandboxManager(SandboxConfig(**asked["sandbox"])) as sandbox,
        NodeAgent(
            sandbox,
            token=asked["token"],
            name=asked["name"],
            directory=directory,
            lost_seconds=asked["lost_seconds"],
            # Tests count processes.
            check_seconds=3600.0,
        ) as agent,
    ):
        print(agent.record.model_dump_json(), flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG)
    anyio.run(main, json.loads(sys.stdin.readline()))
