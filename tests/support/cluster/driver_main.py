"""A driver in a process of its own: runs one program until it is killed."""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from typing import Any

import anyio

from toolcell.cluster import ClusterSandbox, RayDirectory, RedisDirectory


def show(stream: str, data: bytes) -> None:
    print(data.decode(), end="", flush=True)


async def main(asked: dict[str, Any]) -> None:
    directory: RayDirectory | RedisDirectory
    if "address" in asked:
        directory = RayDirectory(asked["address"], seconds=15.0)
        asked["token"] = directory.token
    else:
        directory = RedisDirectory(asked["url"], token=asked["token"])
    sandbox = ClusterSandbox(directory, token=asked["token"], wait_seconds=60.0)
    async with sandbox:
        async with sandbox.session() as session, AsyncExitStack() as stack:
            if asked.get("uploads"):
                fields = session._remote.fields("upload", path="")
                exchange = session._link.exchange(fields)
                await stack.enter_async_context(exchange)
                await exchange.send({"offset": 0}, b"private")
                await exchange.receive()
            status = "timeout"
            # A node gives a run 30 seconds.
            while status == "timeout":
                status = (await session.run(asked["code"], on_output=show)).status


if __name__ == "__main__":
    anyio.run(main, json.loads(sys.stdin.readline()))
