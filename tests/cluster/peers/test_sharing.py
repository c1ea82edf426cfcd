"""Drivers that want different things of one node."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import anyio
import pytest

from toolcell.cluster import NodeAgent
from toolcell.sandbox import ExecutionResult, Limits, Network, Sandbox, SandboxConfig

from ...support.cluster.null_nodes import TOKEN, NullSandbox, driver
from ...support.polling import until

pytestmark = pytest.mark.anyio
SLOTS = 4
RUNS = 12


class Noting(NullSandbox):
    """Notes what each run was asked with, and how many there were at once."""

    def __init__(self) -> None:
        super().__init__("one", SLOTS)
        self.config = SandboxConfig(
            max_concurrency=SLOTS, network=Network.allow(["a.example:443"])
        )
        self.asked: dict[str, dict[str, Any]] = {}
        self.most = 0

    async def run(self, code: str, **options: Any) -> ExecutionResult:
        self.asked[code] = options
        self.most = max(self.most, self.active_cells + 1)
        return await super().run(code, **options)


@pytest.mark.promise("cluster-46")
async def test_drivers_with_other_limits_share_a_node_within_its_slots() -> None:
    cells = Noting()
    wanted: dict[str, dict[str, Any]] = {
        "first": {"limits": Limits(wall_seconds=1), "agent_id": "a"},
        "second": {"limits": Limits(memory_mib=64), "network": Network.none},
    }
    agent = NodeAgent(cast(Sandbox, cells), token=TOKEN, name="one", check_seconds=1e6)
    async with (
        agent,
        driver(agent.record, retry_lost=True, lost_seconds=20.0) as first,
        driver(agent.record) as second,
        anyio.create_task_group() as tasks,
    ):
        await until(lambda: agent.drivers == 2)
        for name, sandbox in (("first", first), ("second", second)):
            for number in range(RUNS):

                async def run(
                    sandbox: Any = sandbox, code: str = f"{name} {number}"
                ) -> None:
                    await sandbox.run(code, **wanted[code.split()[0]])

                tasks.start_soon(run)
        while len(cells.asked) < 2 * RUNS:
            await until(lambda: cells.active_cells == SLOTS)
            # Each has its half of the slots.
            under_way = cells.begun[-SLOTS:]
            assert len([each for each in under_way if "first" in each]) == SLOTS // 2
            before = len(cells.begun)
            cells.release()
            await until(
                lambda: len(cells.begun) in (before + SLOTS, 2 * RUNS)  # noqa: B023
            )
        cells.release()

    assert cells.most == SLOTS
    for code, options in cells.asked.items():
        asked = wanted[code.split()[0]]
        # Each driver has its agents, whose names the node marks.
        marked = (
            asked | {"agent_id": options["agent_id"]} if "agent_id" in asked else asked
        )
        assert {name: options[name] for name in asked} == marked


@pytest.mark.promise("E-79")
async def test_agents_of_two_drivers_are_never_the_same() -> None:
    cells = Noting()
    agent = NodeAgent(cast(Sandbox, cells), token=TOKEN, name="one", check_seconds=1e6)
    async with (
        agent,
        driver(agent.record) as first,
        driver(agent.record) as second,
        anyio.create_task_group() as tasks,
    ):
        await until(lambda: agent.drivers == 2)
        for code, sandbox, name in (
            ("1", first, "default"),
            ("2", second, "default"),
            ("3", first, "default"),
            ("4", second, None),
        ):
            tasks.start_soon(partial(sandbox.run, code, agent_id=name))
        await until(lambda: cells.active_cells == SLOTS)
        cells.release()

    one, two, again, anyone = (cells.asked[code].get("agent_id") for code in "1234")
    assert one != two
    assert one == again
    assert anyone is None
