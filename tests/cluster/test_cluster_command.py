"""`toolcell cluster`: nodes of the command line, a batch and a host on them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import anyio
import pytest
from anyio import to_thread

from toolcell.cluster import ClusterSandbox, FixedNodes, RedisDirectory, new_token
from toolcell.core import ConfigError
from toolcell.host import Host, HostConfig
from toolcell.tools import RunContext

from ..support.child import Child
from ..support.guard.redis_server import RedisServer
from ..support.toolcell_command import TOOLCELL, toolcell

pytestmark = pytest.mark.anyio
CONFIG = """
[sandbox]
backend = "subprocess"
max_concurrency = 9

[tools]
builtin = ["code"]

[[policies]]
agent_id = "a"
allow = ["run_python"]

[cluster]
directory = "env:DIRECTORY"
token = "env:TOKEN"
"""


class Nodes:
    """Nodes that `toolcell cluster up` made, with one configuration."""

    def __init__(self, url: str, folder: Path) -> None:
        self.config = folder / "toolcell.toml"
        self.config.write_text(CONFIG)
        self.environ = {**os.environ, "DIRECTORY": url, "TOKEN": new_token()}
        self.processes: dict[str, subprocess.Popen[str]] = {}

    async def up(self, name: str, **environ: str) -> None:
        process = Child(
            [TOOLCELL, "cluster", "up", "--config", str(self.config), "--json"],
            stdout=subprocess.PIPE,
            env={**self.environ, "TOOLCELL__CLUSTER__NODE": name, **environ},
            text=True,
        )
        self.processes[name] = process
        assert process.stdout is not None
        told = json.loads(await to_thread.run_sync(process.stdout.readline))
        assert told["name"] == name

    async def command(self, *arguments: str, code: int = 0) -> Any:
        done = await to_thread.run_sync(
            lambda: toolcell(
                *arguments, "--config", str(self.config), "--json", env=self.environ
            )
        )
        assert done.returncode == code, done.stderr
        return (
            json.loads(done.stdout) if done.stdout else json.loads(done.stderr)["error"]
        )

    async def states(self) -> dict[str, str]:
        told = await self.command("cluster", "status")
        return {node["name"]: node["state"] for node in told["nodes"]}

    @asynccontextmanager
    async def session_on(self, name: str) -> AsyncIterator[None]:
        """Hold a session on a node, which is then busy."""
        token = self.environ["TOKEN"]
        url = self.environ["DIRECTORY"]
        directory = RedisDirectory(url, token=token, seconds=30.0)
        [record] = [node for node in await directory.nodes() if node.name == name]
        directory.close()
        async with (
            ClusterSandbox(FixedNodes([record]), token=token) as sandbox,
            sandbox.session(),
        ):
            yield

    async def ended(self, name: str) -> int:
        with anyio.fail_after(120):
            return await to_thread.run_sync(self.processes[name].wait)


@pytest.fixture(scope="module")
async def nodes(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Nodes]:
    """The nodes `one` and `two`."""
    made = Nodes(redis_server.url, tmp_path_factory.mktemp("nodes"))
    for name in ("one", "two"):
        await made.up(name)
    yield made
    for process in made.processes.values():
        process.kill()
        process.communicate()


async def test_what_the_nodes_say(nodes: Nodes) -> None:
    for command in ("status", "doctor"):
        told = await nodes.command("cluster", command)
        assert told["waiting"] == 0
        found = told["nodes"]
        assert [each["name"] for each in found] == ["one", "two"]
        assert {(each["state"], each["problem"]) for each in found} == {("ready", "")}
        assert {each["slots"] for each in found} == {9}


async def test_a_cluster_without_nodes_says_how_to_get_one(nodes: Nodes) -> None:
    for command, code in (("status", 0), ("doctor", 4)):
        done = await to_thread.run_sync(
            partial(
                toolcell,
                *("cluster", command, "--config", str(nodes.config)),
                env={**nodes.environ, "TOOLCELL__CLUSTER__NAME": "empty"},
            )
        )
        assert (done.returncode, done.stdout) == (code, b"")
        assert b"`toolcell cluster up` makes a machine one" in done.stderr


@pytest.mark.promise("C3")
async def test_a_node_waits_for_its_directory(tmp_path: Path) -> None:
    """Redis is started when the node has said that it waits for it."""
    server = RedisServer(tmp_path)
    nodes = Nodes(server.url, tmp_path)
    process = Child(
        [TOOLCELL, "cluster", "up", "--config", str(nodes.config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**nodes.environ, "TOOLCELL__CLUSTER__NODE": "late"},
        text=True,
    )
    try:
        assert process.stderr is not None and process.stdout is not None
        notice = await to_thread.run_sync(process.stderr.readline)
        assert "waits for the directory" in notice
        server.start()
        assert "late is up" in await to_thread.run_sync(process.stdout.readline)
    finally:
        process.kill()
        process.communicate()
        server.stop()


@pytest.mark.promise("cluster-30")
async def test_a_host_runs_code_on_the_nodes(nodes: Nodes) -> None:
    config = HostConfig.from_file(nodes.config, environ=nodes.environ)
    async with Host(config, environ=nodes.environ) as host:
        assert host.sandbox is not None
        assert type(host.sandbox).__name__ == "ClusterSandbox"
        result = await host.call(
            "run_python",
            {"code": "6 * 7"},
            agent_id="a",
            run=RunContext(session="s"),
        )
        assert "42" in str(result.content), result
        [busy] = [
            node["busy"]
            for node in (await nodes.command("cluster", "status"))["nodes"]
            if node["busy"]
        ]
        assert busy == 1


async def test_a_batch_runs_on_the_nodes(nodes: Nodes, tmp_path: Path) -> None:
    programs = tmp_path / "programs.jsonl"
    programs.write_text("".join(f'{{"code": "{n} + 1"}}\n' for n in range(6)))
    out = tmp_path / "out.jsonl"
    batch = ("map", str(programs), "--out", str(out), "--cluster")

    done = await nodes.command(*batch)

    assert done["statuses"] == {"ok": 6}
    values = [
        json.loads(line)["result"]["value"] for line in out.read_text().splitlines()
    ]
    assert sorted(values) == [1, 2, 3, 4, 5, 6]
    refused = await nodes.command(*batch, "--memory", "100", code=2)
    assert "--cluster excludes --memory" in refused["message"]


@pytest.mark.promise("cluster-49")
async def test_a_node_tells_prometheus_of_itself(
    nodes: Nodes, free_tcp_port: int
) -> None:
    address = f"127.0.0.1:{free_tcp_port}"
    await nodes.up("metrics", TOOLCELL__TELEMETRY__METRICS_ADDRESS=address)
    page = await to_thread.run_sync(urlopen, f"http://{address}/metrics")
    with page:
        assert b"\ntoolcell_node_slots 9.0\n" in page.read()
    nodes.processes["metrics"].terminate()
    assert await nodes.ended("metrics") == 143


@pytest.mark.promise("cluster-28")
@pytest.mark.timeout(900)
async def test_nodes_end_when_they_are_told_to(nodes: Nodes) -> None:
    await nodes.up("three")
    async with nodes.session_on("three"):
        # It is found in the directory while it drains.
        await nodes.command("cluster", "drain", "three")
        assert (await nodes.states())["three"] == "draining"
        await nodes.command("cluster", "undrain", "three")
        assert (await nodes.states())["three"] == "ready"

        nodes.processes["three"].terminate()
        with anyio.fail_after(120):
            while (await nodes.states())["three"] != "draining":
                pass
        refused = await nodes.command("cluster", "undrain", "three", code=2)
        assert "three ends already" in refused["message"]
    assert await nodes.ended("three") == 143
    told = await nodes.command("cluster", "status")
    names = [node["name"] for node in told["nodes"]]
    assert names == ["one", "two"]

    refused = await nodes.command("cluster", "drain", "three", code=2)
    assert "has no node 'three'" in refused["message"]
    await nodes.command("cluster", "drain", "one")
    assert await nodes.ended("one") == 0

    await nodes.command("cluster", "down")
    assert await nodes.ended("two") == 0
    told = await nodes.command("cluster", "doctor", code=4)
    assert told == {"nodes": [], "waiting": 0}


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ("", "one of `directory` and `address`"),
        ('directory = "env:A"\ntoken = "env:B"\naddress = "auto"', "one of"),
        ('directory = "env:A"', "needs `token`"),
        ('address = "auto"\ntoken = "env:B"', "excludes token"),
        ('address = "auto"\nlisten = "0.0.0.0:1"', "excludes listen"),
    ],
)
async def test_nodes_are_found_in_one_way(
    tmp_path: Path, cluster: str, words: str
) -> None:
    path = tmp_path / "toolcell.toml"
    path.write_text(f"[cluster]\n{cluster}\n")
    with pytest.raises(ConfigError, match=words):
        HostConfig.from_file(path)
