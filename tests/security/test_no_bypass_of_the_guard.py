"""No way to run a registered tool skips the guard: each way in is listed and tried.

Row RG-39. Whoever adds a way in has to put it into a list here, and into a test.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import ToolCall, ToolResult
from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.host import Host
from toolcell.sandbox import SandboxManager
from toolcell.tools import (
    CodeExecutor,
    ConcurrentExecutor,
    SequentialExecutor,
    ToolExecutor,
    ToolRegistry,
    tool,
)

from ..support.paths import ROOT

pytestmark = pytest.mark.anyio

RUN_TOOLS = {
    Host: {"call"},
    ToolExecutor: {"call", "execute", "execute_streaming"},
    CodeExecutor: {"command_calls", "execute"},
}
DO_NOT = {
    Host: {
        *("aclose", "active_calls", "approvals", "audit", "executor", "flows"),
        *("from_config", "guard"),
        *(
            "live_calls",
            "event_bus",
            "mcp_acts",
            "open",
            "redactor",
            "registry",
            "sandbox",
            "sessions",
            "tools",
        ),
    },
    ToolExecutor: {
        *("approval_seconds", "check_records", "may_call", "refuse"),
        *("request_gate", "still_running", "tools"),
    },
    CodeExecutor: {"describe_tools"},
}
CALL = ToolCall(id="1", name="drop", agent_id="a")
Way = Callable[[ToolExecutor], Awaitable[ToolResult]]


async def call(executor: ToolExecutor) -> ToolResult:
    return await executor.call(CALL)


async def execute(executor: ToolExecutor) -> ToolResult:
    [result] = await executor.execute([CALL])
    return result


async def execute_streaming(executor: ToolExecutor) -> ToolResult:
    async with executor.execute_streaming([CALL]) as results:
        async for _, result in results:
            return result
    raise AssertionError("no result came")


WAYS: list[Way] = [call, execute, execute_streaming]


class Dropped:
    """A tool that must never run, and whether it did."""

    def __init__(self) -> None:
        self.runs = 0

        @tool
        async def drop() -> None:
            """Drop everything."""
            self.runs += 1

        self.registry = ToolRegistry([drop])


@pytest.fixture
def dropped() -> Dropped:
    return Dropped()


def deny_all() -> ActionGuard:
    return ActionGuard([AgentPolicy(agent_id="a", allow=["*"], deny=["drop"])])


@pytest.mark.promise("RG-39")
@pytest.mark.parametrize("face", RUN_TOOLS, ids=lambda face: face.__name__)
def test_every_way_in_is_listed(face: type) -> None:
    public = {name for name in dir(face) if not name.startswith("_")}

    assert public == RUN_TOOLS[face] | DO_NOT[face]


@pytest.mark.promise("RG-39")
def test_every_way_of_an_executor_is_tried() -> None:
    assert {way.__name__ for way in WAYS} == RUN_TOOLS[ToolExecutor]


@pytest.mark.promise("RG-39")
@pytest.mark.parametrize("kind", [ConcurrentExecutor, SequentialExecutor])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_an_executor_asks_the_guard(
    kind: Any, way: Way, dropped: Dropped
) -> None:
    result = await way(kind(dropped.registry, guard=deny_all()))

    assert (result.status, dropped.runs) == ("denied", 0)
    # The guard is what stood in the way.
    free = await way(kind(dropped.registry, guard=None))
    assert (free.status, dropped.runs) == ("ok", 1)


@pytest.mark.promise("RG-39")
async def test_a_program_asks_the_guard(
    sandbox: SandboxManager, dropped: Dropped
) -> None:
    code = CodeExecutor(sandbox, dropped.registry, guard=deny_all())
    result = await code.execute("tools.drop()", agent_id="a")

    assert result.exception is not None
    assert [each.result.status for each in result.calls] == ["denied"]
    assert dropped.runs == 0


@pytest.mark.promise("RG-39")
async def test_a_command_asks_the_guard(
    sandbox: SandboxManager, dropped: Dropped
) -> None:
    code = CodeExecutor(sandbox, dropped.registry, guard=deny_all())
    async with sandbox.session(agent_id="a") as session:
        calls = code.command_calls(agent_id="a")
        process = await session.exec("tools drop", calls=calls)
        result = await process.wait()

    assert (result.exit_code, dropped.runs) == (3, 0)
    assert "guard.denied" in result.stderr


@pytest.mark.promise("RG-39")
async def test_a_host_asks_the_guard(tmp_path: Path) -> None:
    path = tmp_path / "toolcell.toml"
    path.write_text(
        '[tools]\nbuiltin = ["arithmetic"]\ntell_remaining = true\n'
        '[state]\nfolder = "state"\n'
        '[[policies]]\nagent_id = "a"\nallow = ["calculate"]\n'
        'budgets = [{ unit = "calls", limit = 1 }]\n'
    )
    async with Host.from_config(path, environ={}) as host:
        said = [
            await host.call("calculate", {"expression": "6 * 7"}, agent_id="a")
            for _ in range(2)
        ]
        [batch] = await host.executor.execute(
            [
                ToolCall(
                    id="b",
                    name="calculate",
                    agent_id="a",
                    arguments={"expression": "1"},
                )
            ]
        )
    assert [each.status for each in (*said, batch)] == ["ok", "denied", "denied"]
    assert said[0].remaining == {"a calls/total": 0}


@functools.cache
def calls() -> dict[str, set[str]]:
    """Return the modules of tools and host that call something, by what they call."""
    found = defaultdict(set)
    for room in ("tools", "host"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    found[ast.unparse(node.func)].add(str(path.relative_to(ROOT)))
    return found


def callers_of(name: str) -> set[str]:
    """Return the modules of tools and host that call something of such a name."""
    named = [at for text, at in calls().items() if f".{text}".endswith(f".{name}")]
    return set().union(*named)


@pytest.mark.promise("RG-39")
@pytest.mark.parametrize(
    ("name", "where"),
    [
        # What runs a tool is made and called at one place each, behind the guard.
        ("ToolRunner", {"tools/execution/executor.py"}),
        ("runner.run", {"tools/execution/pipeline.py"}),
        ("Pipeline", {"tools/execution/executor.py"}),
        ("_run_tool", set()),
        ("tool.call", {"tools/execution/runner.py"}),
        ("run_in_cell", {"tools/execution/runner.py"}),
        # For tests and plain code alone: no guard stands before it.
        ("invoke", {"tools/conformance.py"}),
    ],
)
def test_a_tool_is_run_at_one_place(name: str, where: set[str]) -> None:
    assert callers_of(name) == where
