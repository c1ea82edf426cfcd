"""Metrics of drivers and nodes, and the queue that a directory knows of."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from toolcell.cluster import ClusterSandbox, FixedNodes, NodeAgent, new_token
from toolcell.sandbox import SandboxManager

from ..conftest import SUBPROCESS
from ..support.cluster.patience import givers
from ..support.cluster.processes import ClusterProcesses, NodeProcess
from ..support.polling import until

pytestmark = pytest.mark.anyio
TOKEN = new_token()


def read(reader: InMemoryMetricReader) -> dict[tuple[str, str], Any]:
    """Return the value of each metric of clusters, by name and label."""
    data = reader.get_metrics_data()
    found: dict[tuple[str, str], Any] = {}
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            if scope.scope.name != "toolcell.cluster":
                continue
            for metric in scope.metrics:
                points: Any = metric.data.data_points
                for point in points:
                    label = " ".join(map(str, (point.attributes or {}).values()))
                    value = getattr(point, "value", None)
                    found[metric.name, label] = point.count if value is None else value
    return found


@pytest.mark.promise("cluster-49")
async def test_metrics_count_what_was_run_and_their_labels_are_bounded(
    metric_reader: InMemoryMetricReader,
) -> None:
    before = read(metric_reader)
    async with (
        SandboxManager(SUBPROCESS.config(max_concurrency=2)) as cells,
        NodeAgent(cells, token=TOKEN, name="one", check_seconds=3600.0) as agent,
        ClusterSandbox(FixedNodes([agent.record]), token=TOKEN) as sandbox,
    ):
        for number in range(20):
            code = "1 / 0" if number % 4 == 0 else "1"
            await sandbox.run(code, agent_id=f"agent-{number}")
        async with (
            sandbox.session(),
            sandbox.session(),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(sandbox.run, "1")
            await until(lambda: sandbox.pool_stats().waiting == 1)
            full = read(metric_reader)
            tasks.cancel_scope.cancel()
        await agent.drain()
        await until(lambda: sandbox._nodes.states == ("draining",))
        drained = read(metric_reader)
    after = read(metric_reader)

    def grown(name: str, label: str = "") -> int:
        return int(full[name, label] - before.get((name, label), 0))

    assert grown("toolcell.node.runs", "ok") == 15
    assert grown("toolcell.node.runs", "error") == 5
    assert grown("toolcell.cluster.placed") == 22
    assert grown("toolcell.cluster.run.overhead") == 20
    now = {key: value for key, value in full.items() if key in drained}
    assert now["toolcell.cluster.queue", ""] == 1
    assert now["toolcell.cluster.nodes", "ready"] == 1
    assert (full["toolcell.node.slots", ""], full["toolcell.node.busy", ""]) == (2, 2)
    assert (full["toolcell.node.drivers", ""], full["toolcell.node.ready", ""]) == (
        1,
        1,
    )
    assert drained["toolcell.node.ready", ""] == 0
    assert drained["toolcell.cluster.nodes", "draining"] == 1
    assert after["toolcell.cluster.nodes", "draining"] == 0
    assert after["toolcell.node.slots", ""] == 0
    labels = {label for _, label in after}
    assert labels <= {"", "ok", "error", "timeout", "ready", "draining", "sick"}


@pytest.mark.promise("cluster-49")
async def test_a_lost_node_is_counted(
    metric_reader: InMemoryMetricReader,
    processes: ClusterProcesses,
) -> None:
    node = processes.node("lost", max_concurrency=2)
    before = read(metric_reader).get(("toolcell.cluster.lost", ""), 0)
    async with ClusterSandbox(FixedNodes([node.record]), token=processes.token) as box:
        async with box.session():
            node.process.kill()
            await until(lambda: box.nodes == ())
    assert read(metric_reader)["toolcell.cluster.lost", ""] == before + 1


@pytest.mark.promise("cluster-45")
async def test_the_directory_knows_how_many_runs_wait(
    processes: ClusterProcesses, nodes: dict[str, NodeProcess]
) -> None:
    directory = processes.directory()
    async with ClusterSandbox(directory, token=processes.token) as sandbox:
        await until(lambda: givers(sandbox) == set(nodes))
        async with anyio.create_task_group() as tasks:
            for _ in range(8 + 3):
                tasks.start_soon(sandbox.run, "import time; time.sleep(600)")
            with anyio.fail_after(60):
                while await directory.waiting() != 3:
                    await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()
        with anyio.fail_after(60):
            while await directory.waiting():
                await anyio.sleep(0.05)
    directory.close()
