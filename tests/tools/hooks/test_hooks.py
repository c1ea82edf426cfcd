"""Hooks around runs, spans, and tools that run in cells."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import JsonValue

from toolcell.core import ConfigError, ToolCall
from toolcell.guard import ActionGuard, AgentPolicy, Budget, Redactor
from toolcell.sandbox import SandboxManager
from toolcell.tools import (
    CacheHook,
    ConcurrentExecutor,
    Hook,
    LoggingHook,
    RedactionHook,
    ResultSizeHook,
    ToolRegistry,
    tool,
)
from toolcell.tools.spi import FolderResultStore, Invocation, Proceed

from ...conftest import BackendRow

pytestmark = pytest.mark.anyio
CANARY = "canary-51d0"


@tool
async def shout(text: str) -> str:
    return text.upper()


@tool
async def rows(count: int) -> list[dict[str, str]]:
    return [{"key": "k" * 100, "token": CANARY}] * count


@tool
async def crash() -> None:
    raise ValueError(CANARY)


def executor(*hooks: Hook, **options: Any) -> ConcurrentExecutor:
    options = {"guard": None, **options}
    return ConcurrentExecutor(
        ToolRegistry([shout, rows, crash]), hooks=hooks, **options
    )


def call(name: str, call_id: str = "1", **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=name, agent_id="a", arguments=arguments)


class Mark(Hook):
    """Writes down when it is passed."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name = name
        self.seen = seen

    async def around(self, invocation: Invocation, proceed: Proceed) -> JsonValue:
        self.seen.append(f"{self.name} before {invocation.tool.name}")
        content = await proceed()
        self.seen.append(f"{self.name} after {content}")
        return f"{content}{self.name}"


async def test_the_first_hook_is_the_outermost() -> None:
    seen: list[str] = []
    made = executor(Mark("a", seen), Mark("b", seen))
    result = await made.call(call("shout", text="x"))

    assert result.content == "Xba"
    assert seen == ["a before shout", "b before shout", "b after X", "a after Xb"]


@pytest.mark.promise("RO-04")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_raising_hook_ends_its_own_call_only(when: str) -> None:
    class Raises(Hook):
        async def around(self, invocation: Invocation, proceed: Proceed) -> JsonValue:
            if invocation.call.id != "1":
                return await proceed()
            if when == "after":
                await proceed()
            raise RuntimeError(CANARY)

    made = executor(Raises())
    batch = [call("shout", "0", text="x"), call("shout", text="y")]
    results = await made.execute([*batch, call("shout", "2", text="z")])

    assert [result.status for result in results] == ["ok", "error", "ok"]
    assert CANARY not in results[1].to_text()


@pytest.mark.promise("RG-33")
async def test_what_ran_before_a_hook_failed_does_not_run_again() -> None:
    runs = []

    @tool
    async def pay() -> None:
        runs.append(1)

    class Raises(Hook):
        async def around(self, invocation: Invocation, proceed: Proceed) -> JsonValue:
            await proceed()
            raise RuntimeError("late")

    made = ConcurrentExecutor(ToolRegistry([pay]), guard=None, hooks=[Raises()])
    await made.call(call("pay"))
    again = await made.call(call("pay"))

    assert runs == [1]
    assert again.error is not None
    assert again.error.details == {"outcome": "unknown"}


@pytest.mark.promise("RL-25")
async def test_a_hook_cannot_get_past_the_guard() -> None:
    seen: list[str] = []
    guard = ActionGuard([AgentPolicy(agent_id="a", allow=["rows"])])
    made = executor(Mark("a", seen), guard=guard)

    assert (await made.call(call("shout", text="x"))).status == "denied"
    assert seen == []


@pytest.mark.promise("RL-02")
async def test_redaction_of_results() -> None:
    made = executor(RedactionHook(Redactor(secrets=[CANARY])))
    results = [
        await made.call(call("rows", count=2)),
        await made.call(call("shout", "2", text="plain")),
    ]

    assert CANARY not in results[0].to_text()
    assert results[1].content == "PLAIN"


@pytest.mark.promise("RL-24")
async def test_large_results_are_kept_by_what_they_say(tmp_path: Path) -> None:
    store = FolderResultStore(tmp_path / "results")
    made = executor(
        ResultSizeHook(max_characters=200, preview_characters=10, store=store)
    )
    large = [await made.call(call("rows", str(n), count=5)) for n in range(2)]
    small = await made.call(call("shout", "s", text="x" * 200))
    content: Any = large[0].content

    assert small.content == "X" * 200
    assert content == large[1].content
    assert content["preview"] == '[{"key": "'
    whole = await store.get(content["reference"])
    assert len(whole) == content["characters"]
    assert json.loads(whole) == [{"key": "k" * 100, "token": CANARY}] * 5
    assert len(list((tmp_path / "results").iterdir())) == 1


@pytest.mark.parametrize("name", ["sha256-0", "../../etc/passwd", "/etc/passwd", ""])
async def test_only_results_can_be_fetched(tmp_path: Path, name: str) -> None:
    with pytest.raises(KeyError):
        await FolderResultStore(tmp_path).get(name)


async def test_without_a_store_the_rest_is_lost() -> None:
    made = executor(ResultSizeHook(max_characters=10, preview_characters=2))
    result = await made.call(call("shout", text="x" * 11))

    assert result.content == {"preview": "XX", "characters": 11}
    with pytest.raises(ConfigError):
        ResultSizeHook(max_characters=1, preview_characters=2)


async def test_a_cache_answers_for_a_while_and_the_guard_counts() -> None:
    now = [0.0]
    runs = []

    @tool
    async def price(item: str) -> dict[str, int]:
        runs.append(item)
        return {"price": len(runs)}

    cache = CacheHook(["price"], ttl_seconds=10, max_entries=2, clock=lambda: now[0])
    budget = Budget(unit="calls", limit=6)
    guard = ActionGuard(
        [
            AgentPolicy(agent_id="a", allow=["price"], budgets=[budget]),
            AgentPolicy(agent_id="b", allow=["price"]),
        ]
    )
    made = ConcurrentExecutor(ToolRegistry([price]), guard=guard, hooks=[cache])

    async def ask(call_id: str, item: str, agent: str = "a") -> Any:
        asked = ToolCall(
            id=call_id, name="price", agent_id=agent, arguments={"item": item}
        )
        return (await made.call(asked)).content

    assert await ask("1", "x") == await ask("2", "x") == {"price": 1}
    assert await ask("3", "x", "b") == {"price": 2}
    now[0] = 10
    assert await ask("4", "x") == {"price": 3}
    assert await ask("5", "y") == {"price": 4}
    assert await ask("6", "z") == {"price": 5}
    assert await ask("7", "x") == {"price": 6}
    assert await ask("8", "x") is None, "the budget counts cached answers too"


async def test_failures_are_not_cached() -> None:
    runs = []

    @tool
    async def flaky() -> int:
        runs.append(1)
        if len(runs) == 1:
            raise OSError
        return len(runs)

    made = ConcurrentExecutor(
        ToolRegistry([flaky]), guard=None, hooks=[CacheHook(["flaky"])]
    )
    results = [(await made.call(call("flaky", str(n)))).content for n in range(3)]

    assert results == [None, 2, 2]


@pytest.mark.promise("E-108")
async def test_logs_are_lines_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    made = executor(LoggingHook(redactor=Redactor(secrets=[CANARY])))
    await made.call(call("shout", text=f"{CANARY}\nERROR forged \x1b[2J\u202e"))
    await made.call(call("crash", "2"))
    lines = [r.getMessage() for r in caplog.records if r.name == "toolcell.tools"]

    assert [line.split()[1] for line in lines] == [
        "started",
        "ended",
        "started",
        "failed",
    ]
    assert CANARY not in "".join(lines)
    assert all(line.isascii() and line.isprintable() for line in lines)


def told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_spans_have_the_usual_names(spans: InMemorySpanExporter) -> None:
    inner_tracer = trace.get_tracer("test")

    @tool
    async def inner() -> None:
        with inner_tracer.start_as_current_span("inside"):
            pass

    made = ConcurrentExecutor(ToolRegistry([inner, crash]), guard=None)
    await made.execute([call("inner", "1"), call("crash", "2")])
    by_name = {span.name: span for span in spans.get_finished_spans()}
    outer, failed = by_name["execute_tool inner"], by_name["execute_tool crash"]

    assert told(outer) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "inner",
        "gen_ai.tool.call.id": "1",
        "gen_ai.tool.type": "function",
        "gen_ai.agent.id": "a",
        "toolcell.status": "ok",
    }
    assert outer.kind is trace.SpanKind.INTERNAL
    parent = by_name["inside"].parent
    assert parent is not None
    assert outer.context is not None
    assert parent.span_id == outer.context.span_id
    assert told(failed)["error.type"] == "tool.execution"
    assert CANARY not in failed.to_json()


GREETING = {"hello": "world"}


def _greet(name: str) -> str:
    return f"hello {name}, {GREETING['hello']}"


@tool(sandboxed=True)
def whoami(user: str) -> dict[str, object]:
    return {"pid": os.getpid(), "uid": os.getuid(), "said": _greet(user)}


@tool(sandboxed=True, timeout=0.3)
def spin() -> None:
    while True:
        pass


@tool(sandboxed=True)
def burst() -> None:
    print(CANARY)
    raise ValueError(CANARY)


@tool(sandboxed=True)
def hands_out_an_object() -> object:
    class Bomb:
        def __reduce__(self) -> Any:
            return (os.system, ("touch /tmp/boom",))

    return Bomb()


@pytest.fixture
def cells(sandbox: SandboxManager) -> ConcurrentExecutor:
    registry = ToolRegistry([whoami, spin, burst, hands_out_an_object])
    # With time for a cell to start on a slow machine.
    return ConcurrentExecutor(
        registry, guard=None, sandbox=sandbox, timeout_seconds=100
    )


@pytest.mark.promise("RL-01")
async def test_sandboxed_tools_run_in_cells_on_every_backend(
    cells: ConcurrentExecutor, backend: BackendRow
) -> None:
    result = await cells.call(call("whoami", user="ada"))
    record = cells.records.get_record("1")
    content: Any = result.content

    assert content["said"] == "hello ada, world"
    assert content["uid"] != os.getuid()
    assert record is not None
    assert record.backend == backend.options["backend"]
    assert set(record.usage) == {"wall_ms", "cpu_ms", "bytes"}


@pytest.mark.promise("E-10", "RL-11")
async def test_what_a_cell_sends_is_json_or_nothing(cells: ConcurrentExecutor) -> None:
    results = await cells.execute(
        [call("spin", "1"), call("burst", "2"), call("hands_out_an_object", "3")]
    )
    records = {record.call_id: record for record in cells.records.all_records()}

    assert [result.status for result in results] == ["timeout", "error", "error"]
    assert all(CANARY not in result.to_text() for result in results)
    # A killed cell leaves nothing that could run on.
    assert not any(record.still_running for record in records.values())
    assert cells.still_running == 0
    assert CANARY in str(records["2"].error_detail)


async def test_a_sandboxed_tool_never_runs_outside() -> None:
    made = ConcurrentExecutor(ToolRegistry([whoami]), guard=None)
    result = await made.call(call("whoami", user="ada"))

    assert result.status == "error"
    assert result.error is not None
    assert result.error.kind == "config"


def test_what_cannot_travel_is_refused_at_registration() -> None:
    secret = CANARY

    @tool(sandboxed=True)
    def closes_over() -> str:
        return secret

    @tool(sandboxed=True)
    def holds_a_handle() -> str:
        return LOGGER.name

    @tool(sandboxed=True)
    def takes_a_secret_along() -> str:
        return API_TOKEN

    for wrong in (closes_over, holds_a_handle, takes_a_secret_along):
        with pytest.raises(ConfigError):
            ToolRegistry([wrong])


LOGGER = logging.getLogger("handle")
API_TOKEN = "not-for-cells"
