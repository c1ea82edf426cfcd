"""Calls and requests of programs on nodes, which the guard of their driver judges."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from toolcell.cluster.driver import runs
from toolcell.guard import ActionGuard, AgentPolicy, RedisStore
from toolcell.sandbox import (
    ExecutionResult,
    Finished,
    Limits,
    Network,
    SandboxSession,
)
from toolcell.sandbox.spi import NetworkAct
from toolcell.tools import CodeExecutor, ToolRegistry, tool
from toolcell.tools.spi import CodeResult

from ..conftest import SUBPROCESS
from ..support.cells.gates import Gate
from ..support.cells.web_server import resolve_here, serving
from ..support.cluster.local import local_cluster
from ..support.guard.redis_server import RedisServer

pytestmark = pytest.mark.anyio

CALLS = """
import time
seen = []
while len(seen) < 3:
    try:
        told = tools.add(a=40, b=2)
    except ToolError as error:
        told = error.code
    if [told] != seen[-1:]:
        seen.append(told)
        print("called" if told == 42 else "refused", flush=True)
    time.sleep(0.01)
seen
"""

ENDINGS: dict[str, tuple[Callable[[RedisServer], None], ...]] = {
    "killed": (RedisServer.kill, RedisServer.start),
    "stopped": (RedisServer.stop, RedisServer.start),
    "hung": (RedisServer.pause, RedisServer.resume),
}


@tool
def add(a: int, b: int) -> int:
    return a + b


@pytest.mark.promise("cluster-16")
@pytest.mark.parametrize("ending", ENDINGS)
async def test_calls_are_refused_while_the_store_of_the_guard_is_away(
    tmp_path: Path, ending: str
) -> None:
    away, back = ENDINGS[ending]
    server = RedisServer(tmp_path)
    server.start()
    budgets = [{"unit": "calls", "limit": 100_000, "window": "day"}]
    store = RedisStore(server.url, deadline=1.0)
    guard = ActionGuard(
        [AgentPolicy(agent_id="a", allow=["add"], budgets=budgets)], store=store
    )
    tell, hear = anyio.create_memory_object_stream[str](math.inf)

    def show(_: str, data: bytes) -> None:
        for line in data.decode().split():
            tell.send_nowait(line)

    async def hear_of(word: str) -> None:
        with anyio.fail_after(60):
            while await hear.receive() != word:
                pass

    async with local_cluster(
        SUBPROCESS.config(limits=Limits(wall_seconds=60))
    ) as sandbox:
        registry = ToolRegistry([add])
        code = CodeExecutor(sandbox, registry, guard=guard, max_calls=10_000)
        results: list[CodeResult] = []

        async def run() -> None:
            results.append(await code.execute(CALLS, agent_id="a", on_output=show))

        with tell, hear:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await hear_of("called")
                await to_thread.run_sync(away, server)
                await hear_of("refused")
                await to_thread.run_sync(back, server)
    await store.aclose()
    server.kill()

    [result] = results
    assert result.status == "ok", result.stderr
    assert result.value == [42, "guard.store_unavailable", 42]
    refused = [call.result for call in result.calls if call.result.status != "ok"]
    assert {each.status for each in refused} == {"denied"}


async def _run(session: SandboxSession, code: str, gate: Gate) -> ExecutionResult:
    return await session.run(code, gate=gate)


async def _stream(session: SandboxSession, code: str, gate: Gate) -> ExecutionResult:
    *_, last = [event async for event in session.stream(code, gate=gate)]
    assert isinstance(last, Finished)
    return last.result


@pytest.mark.promise("boundary-1")
@pytest.mark.parametrize("way", [_run, _stream])
async def test_a_gate_with_a_fault_ends_its_run_at_once(
    monkeypatch: pytest.MonkeyPatch,
    way: Callable[[SandboxSession, str, Gate], Awaitable[ExecutionResult]],
) -> None:
    # Else the driver gives the node up, and that hides an act without an answer.
    monkeypatch.setattr(runs, "_END_SECONDS", 3600.0)

    def fail(_: NetworkAct) -> bool:
        raise RuntimeError("a fault")

    with serving() as site, anyio.fail_after(60):
        config = SUBPROCESS.config(network=Network.guarded(site.rules))
        async with local_cluster(config, resolve_here) as sandbox:
            async with sandbox.session() as session:
                code = f"import urllib.request as r; r.urlopen('{site.url}/a')"
                with pytest.raises(RuntimeError, match="a fault"):
                    await way(session, code, Gate(fail))
                result = await way(session, code, Gate())

    assert (result.status, len(site.hits)) == ("ok", 1)
