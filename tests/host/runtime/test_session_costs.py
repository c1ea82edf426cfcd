"""What a session uses between its programs is paid by its agent, once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from toolcell.core import ToolCall
from toolcell.guard import CallFacts
from toolcell.host import Host, HostConfig
from toolcell.tools import RunContext
from toolcell.tools.execution.operation import NO_COST
from toolcell.tools.spi import CodeSession

from ...support.polling import PATIENCE

pytestmark = pytest.mark.anyio

STORM = """
import os, time
children = []
for number in range(4):
    if (child := os.fork()) == 0:
        while time.process_time() < 0.5: pass
        with open(f"used-{number}", "w") as file: file.write(str(time.process_time()))
        os._exit(0)
    children.append(child)
"""
# The kernel's own count of each of them, and how the interpreter gets it, too.
COLLECT = """
for child in children: os.waitpid(child, 0)
sum(float(open(f"used-{number}").read()) for number in range(4)) * 1000
"""


@asynccontextmanager
async def opened(limit: int) -> AsyncIterator[Host]:
    budget = {"unit": "cpu_ms", "limit": limit, "window": "day"}
    config = {
        "sandbox": {"backend": "subprocess", "limits": {"wall_seconds": 60}},
        "tools": {"builtin": ["code", "files"]},
        "policies": [{"agent_id": "a", "allow": ["*"], "budgets": [budget]}],
    }
    async with Host(HostConfig.model_validate(config), environ={}) as host:
        yield host


async def run(host: Host, code: str) -> Any:
    done = await host.call(
        "run_python", {"code": code}, agent_id="a", run=RunContext(session="s")
    )
    assert done.ok, done.error
    return done


async def used(host: Host) -> int:
    [state] = await host.guard.limits("a", "run_python")
    return int(state.used)


@pytest.mark.promise("R25")
async def test_a_storm_between_programs_is_charged_as_the_kernel_counts_it() -> None:
    async with opened(10**6) as host:
        first = await run(host, STORM)
        with anyio.fail_after(PATIENCE):
            while await used(host) < 0.9 * 2_000:
                await anyio.sleep(0.1)
        last = await run(host, COLLECT)
        charged = await used(host)

    oracle = last.content["value"]
    own = first.usage["cpu_ms"] + last.usage["cpu_ms"]
    assert last.usage["cpu_ms"] < 1_000
    assert 0.95 * oracle <= charged <= 1.05 * oracle + own


@pytest.mark.promise("R25")
async def test_a_session_ends_with_the_budget_of_its_agent() -> None:
    async with opened(200_000) as host:
        assert host.sessions is not None
        await run(host, "import os\nif os.fork() == 0:\n    while True: pass")
        call = ToolCall(id="u", name="run_python", agent_id="a")
        spent = {**NO_COST, "cpu_ms": 200_000}
        await host.guard.charge(call, CallFacts(cost=NO_COST), spent)
        [held] = host.sessions.all()
        with anyio.fail_after(PATIENCE):
            await held.closed.wait()

    assert held.end == "budget"


@pytest.mark.promise("R25")
@pytest.mark.promise("R68")
async def test_a_program_that_is_cut_off_is_charged_once() -> None:
    """A cancelled call has no result: it pays what the cell used, nobody pays again."""
    burns = """
import time
while True:
    if time.process_time() > 0.6: time.sleep(3600)
"""
    async with opened(10**6) as host:
        await run(host, "1")
        before = await used(host)
        assert host.sessions is not None
        [held] = host.sessions.all()
        # The start of the cell is nobody's.
        begun = await cpu_ms(held)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, host, burns)
            with anyio.fail_after(PATIENCE):
                while await cpu_ms(held) < 500:
                    await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()
        cut_off = await used(host) - before
        await held.costs.charge(held)
        await run(host, "2")
        charged = await used(host) - before
        oracle = await cpu_ms(held) - begun

    assert 450 <= cut_off < 5_000, "neither nothing, nor all that was held"
    assert 0.95 * oracle <= charged <= 1.05 * oracle + 100


@pytest.mark.promise("R25")
async def test_tools_on_files_of_a_session_are_charged_once() -> None:
    async with opened(10**6) as host:
        assert host.sessions is not None
        for number in range(5):
            done = await host.call(
                "write_file",
                {"path": f"{number}", "text": "x"},
                agent_id="a",
                run=RunContext(session="s"),
            )
            assert done.ok, done.error
        [held] = host.sessions.all()
        await held.costs.charge(held)
        charged, oracle = await used(host), await cpu_ms(held)

    assert charged <= 1.05 * oracle + 10


async def cpu_ms(held: CodeSession) -> float:
    assert held.session is not None
    return (await held.session.usage()).cpu_ms
