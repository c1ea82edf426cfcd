"""Batches on a cluster whose driver is killed again and again."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from toolcell.cluster import NodeAgent, RedisDirectory, new_token
from toolcell.sandbox import ExecutionResult, SandboxManager

from ...conftest import SUBPROCESS
from ...support.child import Child
from ...support.guard.redis_server import RedisServer
from ...support.toolcell_command import TOOLCELL

pytestmark = pytest.mark.anyio
SLOTS = 2
NODES = 2
CONFIG = """
[sandbox]
backend = "subprocess"

[cluster]
directory = "env:DIRECTORY"
token = "env:TOKEN"
"""


class Counted(SandboxManager):
    """A sandbox that counts how often each program was begun."""

    runs: Counter[str]

    async def run(self, code: str, **options: Any) -> ExecutionResult:
        self.runs[code] += 1
        return await super().run(code, **options)


class Batch:
    """Programs that nodes in this process run for a driver in another one."""

    def __init__(self, folder: Path, environ: dict[str, str], count: int) -> None:
        self._folder = folder
        self._environ = environ
        self.runs: Counter[str] = Counter()
        (folder / "toolcell.toml").write_text(CONFIG)
        lines = [json.dumps({"id": f"p{n}", "code": str(n)}) for n in range(count)]
        (folder / "programs.jsonl").write_text("\n".join(lines) + "\n")

    def start(self) -> subprocess.Popen[str]:
        """Start the driver, which goes on where the last one was killed."""
        arguments = ("map", "programs.jsonl", "--out", "results.jsonl", "--cluster")
        return Child(
            [TOOLCELL, *arguments, "--config", "toolcell.toml"],
            cwd=self._folder,
            env=self._environ,
            stdout=subprocess.PIPE,
            text=True,
        )

    def results(self) -> list[dict[str, Any]]:
        lines = (self._folder / "results.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    async def kill_after(self, more: int) -> None:
        """Start a driver, and kill it when so many further runs have begun."""
        wanted = self.runs.total() + more
        with self.start() as driver:
            while self.runs.total() < wanted:
                assert driver.poll() is None
                await anyio.sleep(0.001)
            driver.kill()


@pytest.fixture(
    params=[(60, 3), pytest.param((3000, 50), marks=pytest.mark.full)],
    ids=["small", "whole"],
)
async def batch(
    request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path: Path
) -> AsyncIterator[tuple[Batch, int, int]]:
    """A batch, how many programs it has, and how often its driver is killed."""
    count, kills = request.param
    token = new_token()
    environ = {**os.environ, "DIRECTORY": redis_server.url, "TOKEN": token}
    made = Batch(tmp_path, environ, count)
    directory = RedisDirectory(redis_server.url, token=token)
    async with AsyncExitStack() as stack:
        for number in range(NODES):
            config = SUBPROCESS.config(max_concurrency=SLOTS)
            sandbox = await stack.enter_async_context(Counted(config))
            sandbox.runs = made.runs
            agent = NodeAgent(
                sandbox,
                token=token,
                name=f"n{number}",
                directory=directory,
                # Its tries are programs, too.
                check_seconds=3600.0,
            )
            await stack.enter_async_context(agent)
        yield made, count, kills
    directory.close()


@pytest.mark.promise("cluster-40")
@pytest.mark.timeout(1200)
async def test_a_killed_driver_loses_no_program_and_runs_few_twice(
    batch: tuple[Batch, int, int],
) -> None:
    made, count, kills = batch
    chance = random.Random(40)
    for _ in range(kills):
        # What was killed is run again: it can never be at its end before the last.
        await made.kill_after(chance.randrange(1, count // kills - SLOTS * NODES))
    with made.start() as driver:
        out, _ = await to_thread.run_sync(driver.communicate)

    assert driver.returncode == 0
    assert out.endswith(f"{count} ok\n")
    found = made.results()
    assert Counter(each["id"] for each in found) == Counter(
        f"p{number}" for number in range(count)
    )
    assert all(f"p{each['result']['value']}" == each["id"] for each in found)
    again = made.runs.total() - count
    print(f"{kills} kills: {again} programs were begun again")
    assert len(made.runs) == count
    assert again <= kills * SLOTS * NODES * 1.25
