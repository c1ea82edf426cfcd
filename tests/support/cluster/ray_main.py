"""A Ray cluster on this machine, in a process of its own: requests in, answers out.

Each line of input is a JSON object with `op`; each line of output is its answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import anyio
import anyio.to_thread

SETTINGS = json.loads(sys.stdin.readline())
os.environ.update(SETTINGS["environ"])

import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from toolcell.cluster import NodeSettings, RayDirectory  # noqa: E402
from toolcell.sandbox import SandboxConfig  # noqa: E402

SMALL = {"num_cpus": 0, "object_store_memory": 80 * 2**20}
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


class Requests:
    """Does to the cluster what a test asks for."""

    def __init__(self) -> None:
        self._cluster: Any = Cluster(
            initialize_head=True,
            connect=False,
            head_node_args={**SMALL, "include_dashboard": False},
        )
        self._nodes: list[Any] = []
        self._directory: RayDirectory | None = None

    def end(self) -> None:
        if self._directory is not None:
            self._directory.close()
        self._cluster.shutdown()

    async def address(self) -> str:
        return str(self._cluster.address)

    async def add(self, slots: int) -> str:
        """Add a machine; return its number."""
        resources = {"toolcell": slots}
        node = self._cluster.add_node(wait=False, resources=resources, **SMALL)
        self._cluster._wait_for_node(node, timeout=120)
        self._nodes.append(node)
        return str(node.node_id)

    async def start(self, lost_seconds: float = 30.0, **sandbox: Any) -> str:
        """Start the nodes; return the token of their links."""
        self._directory = RayDirectory(self._cluster.address, seconds=15.0)
        config = SandboxConfig(backend="subprocess", **sandbox)
        # Tests count processes.
        settings = NodeSettings(
            sandbox=config, check_seconds=3600.0, lost_seconds=lost_seconds
        )
        await self._directory.start(settings)
        return self._directory.token

    async def nodes(self) -> list[Any]:
        assert self._directory is not None
        return [node.model_dump() for node in await self._directory.nodes()]

    async def tell(self, waiting: int) -> None:
        assert self._directory is not None
        await self._directory.tell("test", waiting)

    async def stop(self) -> None:
        assert self._directory is not None
        await self._directory.stop()

    async def pid(self, process: str, number: str = "") -> int:
        """Return a process, such as `raylet`, of the head or of a machine."""
        return int(self._process(process, number).pid)

    async def kill(self, process: str, number: str = "") -> None:
        """Kill a process of the head or of a machine, and leave no zombie of it."""
        found = self._process(process, number)
        found.kill()
        found.wait()

    async def head(self) -> None:
        """Start the head's server again, which was killed."""
        node = self._cluster.head_node
        node.kill_gcs_server(check_alive=False)
        node.start_gcs_server()

    def _process(self, process: str, number: str) -> subprocess.Popen[bytes]:
        node = self._cluster.head_node
        for started_node in self._nodes:
            if started_node.node_id == number:
                node = started_node
        [found] = node.all_processes[process]
        started: subprocess.Popen[bytes] = found.process
        return started

    async def foreign(self) -> int:
        """Have an actor that is not ours; return its process, the same each time."""

        class Foreign:
            def pid(self) -> int:
                return os.getpid()

        options: Any = ray.remote(Foreign).options(
            name="foreign", lifetime="detached", num_cpus=0, get_if_exists=True
        )
        return int(ray.get(options.remote().pid.remote()))

    async def groups(self) -> list[Any]:
        """Return the placement groups: name, state, slots."""
        table = ray.util.placement_group_table().values()
        return [
            [
                each["name"],
                each["state"],
                sum(part["toolcell"] for part in each["bundles"].values()),
            ]
            for each in table
            if each["state"] != "REMOVED"
        ]


async def main() -> None:
    requests = Requests()
    print(json.dumps(await requests.address()), file=ANSWERS, flush=True)
    while line := await anyio.to_thread.run_sync(sys.stdin.readline):
        asked = json.loads(line)
        try:
            answer = await getattr(requests, asked.pop("op"))(**asked)
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), file=ANSWERS, flush=True)
    requests.end()


anyio.run(main)
