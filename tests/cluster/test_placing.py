"""Nodes that fall sick, drain, speak another protocol, or are lost in a run."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from toolcell.cluster import ClusterSandbox, FixedNodes, NodeAgent, new_token
from toolcell.cluster.node import agent as agent_module
from toolcell.cluster.node.health import TRY_SECONDS
from toolcell.cluster.spi import ClusterAdmin
from toolcell.core import CellLostError, InvalidInputError, SandboxUnavailableError
from toolcell.sandbox import ExecutionResult, Finished, HostCalls, SandboxManager

from ..conftest import SUBPROCESS
from ..support.cluster.patience import LONG, givers, refusal, wait_briefly
from ..support.cluster.processes import ClusterProcesses, NodeProcess
from ..support.polling import until

pytestmark = pytest.mark.anyio
TOKEN = new_token()
SLOW = "import time\ntime.sleep(1)\n6 * 7"
ENDLESS = "import time\ntime.sleep(600)"


@asynccontextmanager
async def node(
    name: str, *, check_seconds: float = 3600.0
) -> AsyncIterator[tuple[SandboxManager, NodeAgent]]:
    async with (
        SandboxManager(SUBPROCESS.config(max_concurrency=2)) as sandbox,
        NodeAgent(
            sandbox, token=TOKEN, name=name, check_seconds=check_seconds
        ) as agent,
    ):
        yield sandbox, agent


def states(sandbox: ClusterSandbox) -> dict[str, str]:
    return {each.record.name: each.state for each in sandbox._nodes.open}


@pytest.mark.promise("cluster-29")
async def test_a_sick_node_leaves_the_rotation_and_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(*_: object, **__: object) -> ExecutionResult:
        raise SandboxUnavailableError("no cell today", hint="wait")

    async with (
        node("one") as (_, one),
        node("two", check_seconds=0.2) as (cells, two),
        ClusterSandbox(FixedNodes([one.record, two.record]), token=TOKEN) as sandbox,
    ):
        await until(lambda: givers(sandbox) == {"one", "two"})
        with monkeypatch.context() as patched:
            patched.setattr(cells, "run", broken)
            await until(lambda: states(sandbox)["two"] == "sick")
            async with sandbox.session() as first, sandbox.session() as second:
                assert (first.node, second.node) == ("one", "one")
            [_, told] = await ClusterAdmin(
                FixedNodes([one.record, two.record]), token=TOKEN
            ).status()
            assert (told.name, told.state, told.problem) == (
                "two",
                "sick",
                "it is sick: no cell today",
            )
        await until(lambda: states(sandbox)["two"] == "ready")
        async with sandbox.session() as first, sandbox.session() as second:
            assert {first.node, second.node} == {"one", "two"}


@pytest.mark.promise("cluster-29")
async def test_a_node_whose_cells_hang_gets_nothing_after_ten_seconds() -> None:
    # Two tries, and a second between them.
    assert 2 * TRY_SECONDS + 1 < 10
    async with (
        node("one") as (_, one),
        node("two", check_seconds=0.1) as (cells, two),
        ClusterSandbox(FixedNodes([one.record, two.record]), token=TOKEN) as sandbox,
    ):
        await until(lambda: givers(sandbox) == {"one", "two"})
        backend: Any = cells._backend
        os.kill(backend._launcher._process.pid, signal.SIGSTOP)
        await until(lambda: states(sandbox)["two"] == "sick")
        for _ in range(20):
            assert (await sandbox.run("6 * 7")).value == 42
        # A launcher that was silent for ten seconds is replaced.
        await until(lambda: states(sandbox)["two"] == "ready")


async def test_runs_do_not_wait_for_ever_where_all_nodes_are_sick() -> None:
    async with (
        node("one") as (_, one),
        ClusterSandbox(FixedNodes([one.record]), token=TOKEN) as sandbox,
    ):
        wait_briefly(sandbox)
        await one.drain()
        await until(lambda: states(sandbox) == {"one": "draining"})
        with anyio.fail_after(60), pytest.raises(SandboxUnavailableError) as caught:
            await sandbox.run("1")
    assert caught.value.details["reason"] == "no_nodes"
    assert "one is draining" in caught.value.message


@pytest.mark.promise("cluster-28")
async def test_a_node_that_is_told_to_end_waits_for_its_runs() -> None:
    async with node("one") as (_, one):
        nodes = FixedNodes([one.record])
        admin = ClusterAdmin(nodes, token=TOKEN)
        async with ClusterSandbox(nodes, token=TOKEN) as sandbox:
            async with sandbox.session() as session:
                await admin.drain("one", 60)
                [told] = await admin.status()
                assert (told.state, told.busy, told.drivers) == ("draining", 1, 1)
                with anyio.move_on_after(0.3) as scope:
                    await one.retired()
                assert scope.cancelled_caught
                assert (await session.run("6 * 7")).value == 42
            with anyio.fail_after(60):
                await one.retired()


@pytest.mark.promise("cluster-28")
async def test_sessions_of_a_node_that_drains_are_warned() -> None:
    async with node("one") as (_, one):
        nodes = FixedNodes([one.record])
        admin = ClusterAdmin(nodes, token=TOKEN)
        async with (
            ClusterSandbox(nodes, token=TOKEN) as sandbox,
            sandbox.session() as session,
        ):
            assert (await session.run("1")).warnings == ()
            await admin.drain("one", 600)
            [told] = (await session.run("2")).warnings
            assert re.search(
                r"one ends, .* in [56]\d\d seconds at the latest: save", told
            )
            events = [each async for each in session.stream("3")]
            assert isinstance(events[-1], Finished)
            assert len(events[-1].result.warnings) == 1
            await admin.undrain("one")
            assert (await session.run("4")).warnings == ()
            await one.drain()
            [told] = (await session.run("5")).warnings
            assert told == "the node one takes nothing new: save what is to be kept"


@pytest.mark.promise("cluster-28")
async def test_a_node_that_is_told_to_end_has_a_deadline() -> None:
    async with node("one") as (_, one):
        nodes = FixedNodes([one.record])
        async with (
            ClusterSandbox(nodes, token=TOKEN) as sandbox,
            sandbox.session(),
        ):
            await ClusterAdmin(nodes, token=TOKEN).drain("one", 0.2)
            with anyio.fail_after(60):
                await one.retired()
            assert one.busy == 1


@pytest.mark.promise("cluster-28")
async def test_a_node_that_is_undrained_takes_runs_again_and_stays() -> None:
    async with node("one") as (_, one):
        nodes = FixedNodes([one.record])
        admin = ClusterAdmin(nodes, token=TOKEN)
        async with ClusterSandbox(nodes, token=TOKEN) as sandbox:
            async with sandbox.session(), anyio.create_task_group() as tasks:
                await admin.drain("one", 60)
                await until(lambda: states(sandbox) == {"one": "draining"})
                # It waits for a place until then.
                tasks.start_soon(sandbox.run, "1")
                await until(lambda: sandbox.pool_stats().waiting == 1)
                await admin.undrain("one")
            await until(lambda: not one.busy)
            # Longer than a node that drains looks whether it is idle.
            with anyio.move_on_after(0.3) as scope:
                await one.retired()
            assert scope.cancelled_caught
            assert (await sandbox.run("6 * 7")).value == 42

            # It can be drained again, with another deadline each time.
            async with sandbox.session():
                await admin.drain("one", 60)
                await admin.drain("one", 0.1)
                with anyio.fail_after(60):
                    await one.retired()
            with pytest.raises(InvalidInputError, match="one ends already"):
                await admin.undrain("one")


async def test_a_node_that_is_not_there_cannot_be_drained() -> None:
    async with node("one") as (_, one):
        gone = one.record.model_copy(update={"name": "gone", "port": 1})
        admin = ClusterAdmin(FixedNodes([one.record, gone]), token=TOKEN)
        with pytest.raises(InvalidInputError, match="has no node 'two'"):
            await admin.drain("two", 1)
        with pytest.raises(InvalidInputError, match="does not answer"):
            await admin.drain("gone", 1)
        [away, here] = await admin.status(check=True)
        assert (away.name, away.state) == ("gone", "unreachable")
        assert away.problem
        assert (here.state, here.problem, here.slots) == ("ready", "", 2)


@pytest.mark.promise("cluster-42", "QL3")
async def test_another_protocol_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_module, "PROTOCOL", 99)
    async with node("old") as (_, old):
        nodes = FixedNodes([old.record])
        error = await refusal(ClusterSandbox(nodes, token=TOKEN, wait_seconds=LONG))
        assert "old: it speaks protocol 99 of toolcell" in error.message
        [told] = await ClusterAdmin(nodes, token=TOKEN).status()
        assert "protocol 99" in told.problem


@asynccontextmanager
async def retrying(
    processes: ClusterProcesses, nodes: dict[str, NodeProcess]
) -> AsyncIterator[ClusterSandbox]:
    directory = processes.directory()
    async with ClusterSandbox(
        directory, token=processes.token, retry_lost=True, wait_seconds=LONG
    ) as sandbox:
        await until(lambda: givers(sandbox) == nodes.keys())
        yield sandbox
    directory.close()


def used(sandbox: ClusterSandbox) -> list[str]:
    return [each.record.name for each in sandbox._nodes.open if each.in_use]


@pytest.mark.promise("cluster-17", "cluster-18")
async def test_a_lost_program_is_run_again_where_asked_and_not_after_a_call(
    processes: ClusterProcesses,
) -> None:
    started = {
        name: processes.node(name, max_concurrency=2)
        for name in ("three", "four", "five")
    }
    found: list[ExecutionResult] = []
    calls: list[str] = []

    async def answer(name: str, *_: Any) -> dict[str, Any]:
        calls.append(name)
        return {"value": None}

    async with retrying(processes, started) as sandbox:
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                found.append(await sandbox.run(SLOW))

            tasks.start_soon(run)
            await until(lambda: used(sandbox) != [])
            [first] = used(sandbox)
            started[first].process.kill()
        assert found[0].value == 42

        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                host = HostCalls(names=("note",), handler=answer)
                with pytest.raises(CellLostError):
                    await sandbox.run(f"tools.note()\n{ENDLESS}", calls=host)

            tasks.start_soon(call)
            await until(lambda: calls == ["note"])
            [second] = used(sandbox)
            started[second].process.kill()
        assert calls == ["note"]
