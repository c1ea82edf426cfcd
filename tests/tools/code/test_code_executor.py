"""Programs in cells call tools, on every backend; each call is one like any other."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from toolcell.core import InvalidInputError, SandboxUnavailableError
from toolcell.guard import (
    ActionGuard,
    AgentPolicy,
    ApprovalRequest,
    Approvals,
    Approve,
    Budget,
    Reject,
)
from toolcell.sandbox import Limits, SandboxConfig, SandboxManager
from toolcell.tools import (
    CodeExecutor,
    RunContext,
    SequentialExecutor,
    ToolContext,
    ToolRegistry,
    tool,
)
from toolcell.tools.spi import CodeResult

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("A-01 A-02 A-04 GR-18 GR-19 GR-20 GR-21 GR-22 GR-23 RG-44"),
]

TRY = """
def attempt(tool, *args, **options):
    try:
        return tool(*args, **options)
    except ToolError as error:
        return error.code
"""
RAW = (
    TRY
    + """
import json, os
bridge = tools.who._bridge
def raw(number, name, options="{}", more=""):
    text = '{"name": %s, "args": [], "kwargs": %s%s}'
    data = (text % (json.dumps(name), options, more)).encode()
    os.write(bridge._fd, b"%08x%08x%s" % (len(data), number, data))
    return attempt(bridge._result, number)
"""
)
"""A program that writes what it likes on the bridge."""


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool
async def who(context: ToolContext) -> list[str | None]:
    """Say who calls."""
    return [context.agent_id, context.parent_id, context.call_id]


@tool
async def fail(text: str) -> None:
    """Fail."""
    raise OSError(f"hunter2 {text}")


def guarded(**policy: Any) -> ActionGuard:
    return ActionGuard([AgentPolicy(agent_id="a", **policy)])


def made_by(result: CodeResult) -> list[tuple[str, dict[str, Any], str, Any]]:
    return [
        (call.call.name, call.call.arguments, call.result.status, call.result.content)
        for call in result.calls
    ]


@pytest.fixture
def code(sandbox: SandboxManager) -> CodeExecutor:
    return CodeExecutor(sandbox, ToolRegistry([add, who, fail]), guard=None)


# --- calls -------------------------------------------------------------------


async def test_a_program_calls_tools(code: CodeExecutor) -> None:
    program = """
import asyncio
async def both():
    return await asyncio.gather(tools.add(10), tools.add(20, b=2))
[tools.add(1, 2), tools.add(b=3, a=4), asyncio.run(both())]
"""
    result = await code.execute(program, agent_id="a")

    assert (result.status, result.value) == ("ok", [3, 7, [11, 22]]), result.stderr
    assert made_by(result)[:2] == [
        ("add", {"a": 1, "b": 2}, "ok", 3),
        ("add", {"b": 3, "a": 4}, "ok", 7),
    ]
    assert {call.result.content for call in result.calls} == {3, 7, 11, 22}


async def test_a_session_calls_tools_where_it_left_off(
    sandbox: SandboxManager, code: CodeExecutor
) -> None:
    async with sandbox.session(agent_id="a") as session:
        first = await code.execute("x = tools.add(1)", agent_id="a", session=session)
        last = await code.execute("tools.add(x, x)", agent_id="a", session=session)
        with pytest.raises(InvalidInputError, match="not this agent's"):
            await code.execute("x", agent_id="b", session=session)
        with pytest.raises(InvalidInputError, match="not this agent's"):
            await code.execute("x", session=session)

    assert last.value == 4, last.stderr
    assert [len(each.calls) for each in (first, last)] == [1, 1]
    assert first.calls[0].call.id != last.calls[0].call.id


async def test_each_call_passes_the_guard(sandbox: SandboxManager) -> None:
    guard = guarded(allow=["add"], budgets=[Budget(unit="calls", limit=2)])
    code = CodeExecutor(sandbox, ToolRegistry([add, who]), guard=guard)
    program = f"{TRY}\n[attempt(tools.who)] + [attempt(tools.add, i) for i in range(3)]"

    result = await code.execute(program, agent_id="a")
    stranger = await code.execute(program, agent_id="b")

    assert result.value == ["guard.denied", 1, 2, "guard.denied"], result.stderr
    assert [each[2] for each in made_by(result)] == ["denied", "ok", "ok", "denied"]
    assert stranger.value == ["guard.denied"] * 4
    records = code.executor.records.all_records()
    verdicts = [(record.agent_id, record.verdict) for record in records]
    mine = [("a", each) for each in ("denied", "allowed", "allowed", "denied")]
    assert verdicts == [*mine, *[("b", "denied")] * 4]


async def test_the_calls_told_are_those_that_ran(code: CodeExecutor) -> None:
    program = f"""{TRY}
# tools.who()
"tools.who()"
class mine:
    def who(): return 0
mine.who()
alias = getattr(tools, "ad" + "d")
alias(1)
attempt(tools.fail, "now")
attempt(alias, "x", b=[])
attempt(alias, 1, 2, 3)
"""
    result = await code.execute(program, agent_id="a")

    assert made_by(result) == [
        ("add", {"a": 1}, "ok", 2),
        ("fail", {"text": "now"}, "error", None),
        ("add", {"a": "x", "b": []}, "error", None),
        ("add", {}, "error", None),
    ], result.stderr
    assert all(0 < call.duration_ms < 20_000 for call in result.calls)
    records = code.executor.records.query(parent_id=result.id)
    assert [each.call_id for each in records] == [each.call.id for each in result.calls]
    assert [record.error_kind for record in records] == [
        None,
        "tool.execution",
        "tool.validation",
        "tool.validation",
    ]
    told = json.loads(json.dumps(result.to_json()))
    assert [call["result"]["status"] for call in told["calls"]] == [
        "ok",
        "error",
        "error",
        "error",
    ]


async def test_a_refusal_says_why_and_no_more(code: CodeExecutor) -> None:
    program = """
def said(tool, *args, **options):
    try: tool(*args, **options)
    except ToolError as error: return [error.code, str(error)]
[said(tools.add, "x"), said(tools.add, 1, a=2), said(tools.fail, "x")]
"""
    result = await code.execute(program)

    wrong = "the arguments of add do not fit: a: wrong type, expected a valid integer"
    assert isinstance(result.value, list), result.stderr
    validation, twice, failed = result.value
    retry = "correct these fields and call again"
    assert validation == ["tool.validation", f"{wrong} ({retry})"]
    once = "give each argument once, by position or by name"
    assert twice == ["tool.validation", f"add got a twice ({once})"]
    other = "try other arguments or another tool; the host's record has the cause"
    assert failed == ["tool.execution", f"fail failed (OSError) ({other})"]


async def test_variables_of_the_program(code: CodeExecutor) -> None:
    values = {"x": 20, "nested": {"list": [1, None, "ö"]}}
    result = await code.execute("[tools.add(x), nested]", extra_namespace=values)

    assert result.value == [21, values["nested"]], result.stderr
    assert result.usage.wall_ms > 0
    for wrong in ({"f": print}, {"x": (1, 2)}, {"x": {1: 2}}, {"x": float("nan")}):
        with pytest.raises(InvalidInputError, match="pass None, bool, int"):
            await code.execute("1", extra_namespace=wrong)
    with pytest.raises(InvalidInputError, match="would hide the tools"):
        await code.execute("1", extra_namespace={"tools": 1})


async def test_the_last_resort_calls_tools_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_namespaces(self: object) -> None:
        raise SandboxUnavailableError("no user namespaces here", details={"kernel": ""})

    start = "toolcell.sandbox.backends.namespaces.SubprocessBackend.start"
    monkeypatch.setattr(start, no_namespaces)
    config = SandboxConfig(backend="subprocess", minimum_isolation="process")
    async with SandboxManager(config) as sandbox:
        code = CodeExecutor(sandbox, ToolRegistry([add]), guard=guarded(allow=["add"]))
        result = await code.execute("tools.add(1, 2)", agent_id="a")
        refused = await code.execute("import os\ntools.add(1)", agent_id="a")

    assert result.value == 3, result.stderr
    assert (refused.status, refused.calls) == ("refused", ())


# --- programs that lie -------------------------------------------------------


@pytest.mark.promise("E-84", "GR-19")
async def test_a_program_cannot_be_another(code: CodeExecutor) -> None:
    forged = ', "agent_id": "root", "parent_id": "x", "call_id": "x", "session": "x"'
    program = f"""{RAW}
more = {forged!r}
honest = tools.who()
odd = [raw(7, "who", more=more), raw(7, "who", '{{"agent_id": "root"}}')]
[honest, *odd]
"""
    result = await code.execute(program, agent_id="a", call_id="asked")

    assert isinstance(result.value, list), result.stderr
    first, second, third = result.value
    assert isinstance(first, list) and isinstance(second, list)
    assert first[:2] == second[:2] == ["a", "asked"]
    assert len({first[2], second[2], result.calls[2].call.id}) == 3
    assert third == "tool.validation"
    assert {call.call.agent_id for call in result.calls} == {"a"}


@pytest.mark.promise("E-85", "GR-19")
async def test_a_program_reaches_only_what_its_agent_sees(
    sandbox: SandboxManager,
) -> None:
    def visible(agent_id: str | None, seen: Any) -> bool:
        return seen.name != "fail" or agent_id == "root"

    registry = ToolRegistry([who, fail], visible=visible)
    code = CodeExecutor(sandbox, registry, guard=None)
    names = ["fail", "__class__", "_executor", "answer", "", "who.__call__", "WHO"]
    program = f"{RAW}\n[hasattr(tools, 'fail')] + [raw(1, name) for name in {names}]"
    result = await code.execute(program, agent_id="a")
    rooted = await code.execute("hasattr(tools, 'fail')", agent_id="root")

    assert result.value == [False, *["not_found"] * len(names)], result.stderr
    assert result.calls == ()
    assert rooted.value is True
    assert "fail" not in code.describe_tools("a")
    assert "def fail(text: str) -> None:" in code.describe_tools("root")


@pytest.mark.promise("E-85")
async def test_a_tool_that_is_taken_away_is_gone_at_once(
    sandbox: SandboxManager,
) -> None:
    registry = ToolRegistry([add])

    @registry.tool
    def close() -> None:
        registry.unregister("add")

    code = CodeExecutor(sandbox, registry, guard=None)
    program = f"{TRY}\n[tools.add(1), tools.close(), attempt(tools.add, 1)]"
    result = await code.execute(program)

    assert result.value == [2, None, "tool.not_found"], result.stderr


@pytest.mark.promise("E-86", "GR-19")
async def test_programs_inside_programs_have_one_budget_and_an_end(
    sandbox: SandboxManager,
) -> None:
    registry = ToolRegistry([add])
    code = CodeExecutor(sandbox, registry, guard=None, max_depth=2, max_calls=5)
    inner: list[CodeResult] = []

    @registry.tool(timeout=60)
    async def program(text: str, context: ToolContext) -> Any:
        """Run a program."""
        values = {"text": text}
        result = await code.execute(
            text,
            agent_id=context.agent_id,
            call_id=context.call_id,
            extra_namespace=values,
        )
        inner.append(result)
        return result.value

    deeper = f"{TRY}\n[tools.add(1), attempt(tools.program, text)]"
    values = {"text": deeper}
    deep = await code.execute(
        "[tools.program(text)]", agent_id="a", extra_namespace=values
    )
    wide = await code.execute(
        f"{TRY}\ntools.program(text)\n[attempt(tools.add, i) for i in range(2)]",
        agent_id="a",
        extra_namespace={"text": f"{TRY}\n[attempt(tools.add, i) for i in range(9)]"},
    )

    assert deep.value == [[2, "tool.execution"]], deep.stderr
    assert inner[0].calls[1].result.error is not None
    assert "2 deep" in inner[0].calls[1].result.error.message
    assert {call.call.parent_id for call in inner[0].calls} == {deep.calls[0].call.id}
    assert inner[1].value == [1, 2, 3, 4, *["too_many"] * 5]
    assert wide.value == ["too_many", "too_many"], wide.stderr


@pytest.mark.promise("E-88", "RL-14")
async def test_an_approved_call_is_not_approved_again_by_a_replay(
    sandbox: SandboxManager,
) -> None:
    paid: list[int] = []

    @tool(requires_approval=True)
    async def pay(amount: int) -> int:
        """Pay."""
        paid.append(amount)
        return amount

    async def once(request: ApprovalRequest) -> Approve | Reject:
        if paid:
            return Reject(approver="anna", reason="once is enough")
        return Approve(approver="anna")

    guard = ActionGuard(
        [AgentPolicy(agent_id="a", allow=["pay", "who"])],
        approvals=Approvals(handler=once),
    )
    code = CodeExecutor(sandbox, ToolRegistry([pay, who]), guard=guard)
    options = '{"amount": 5}'
    program = f"{RAW}\n[raw(1, 'pay', {options!r}) for _ in range(3)]"
    unasked = await code.execute(program, agent_id="a")
    result = await code.execute(
        program, agent_id="a", run=RunContext(approval_seconds=60)
    )

    assert unasked.value == ["guard.denied"] * 3, unasked.stderr
    assert result.value == [5, "guard.denied", "guard.denied"], result.stderr
    assert paid == [5]
    assert len({call.call.id for call in result.calls}) == 3
    assert [each[2] for each in made_by(result)] == ["ok", "denied", "denied"]


@pytest.mark.promise("E-89", "E-92")
async def test_what_was_judged_is_what_runs(sandbox: SandboxManager) -> None:
    read: list[str] = []

    @tool
    async def look(path: str) -> str:
        """Read a file."""
        read.append(path)
        return path

    rule: Any = {"tools": ["look"], "when": {"path": {"under": "/data"}}}
    guard = guarded(allow=[rule, "who"])
    code = CodeExecutor(sandbox, ToolRegistry([look, who]), guard=guard)
    twice = '{"path": "/data/x", "path": "/etc/passwd"}'
    program = f"""{RAW}
class Path(str):
    def __str__(self): return "/data/x"
said = [
    attempt(tools.look, "/data/x"),
    attempt(tools.look, "/etc/passwd"),
    attempt(tools.look, "/data/../etc/passwd"),
    attempt(tools.look, Path("/etc/passwd")),
    attempt(tools.look, "/data/x", path="/etc/passwd"),
    attempt(tools.look, path=["/data/x", "/etc/passwd"]),
]
data = ('{{"name": "look", "args": [], "kwargs": %s}}' % {twice!r}).encode()
os.write(bridge._fd, b"%08x%08x%s" % (len(data), 1, data))
said + [tools.who()[0]]
"""
    result = await code.execute(program, agent_id="a")

    denied, invalid = "guard.denied", "tool.validation"
    assert result.value == ["/data/x", denied, denied, denied, invalid, invalid, "a"], (
        result.stderr
    )
    assert read == ["/data/x"]


# --- limits and ends ---------------------------------------------------------


async def test_calls_have_a_number_and_a_share(sandbox: SandboxManager) -> None:
    gate = Gate(2)
    code = CodeExecutor(
        sandbox, ToolRegistry([gate.tool]), guard=None, max_calls=4, max_concurrency=2
    )
    program = f"""{TRY}
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(6) as pool:
    said = list(pool.map(lambda _: attempt(tools.meet), range(6)))
sorted(said, key=str)
"""
    result = await code.execute(program)

    assert result.value == [2, 2, 2, 2, "too_many", "too_many"], result.stderr
    assert (gate.most, len(result.calls)) == (2, 4)


async def test_calls_that_the_deadline_meets_are_told(sandbox: SandboxManager) -> None:
    gate = Gate(2)
    code = CodeExecutor(sandbox, ToolRegistry([gate.tool]), guard=None)
    stuck = await code.execute("tools.meet()", limits=Limits(wall_seconds=6))

    assert stuck.status == "timeout"
    assert [call.result.status for call in stuck.calls] == ["cancelled"]
    [record] = code.executor.records.query(parent_id=stuck.id)
    assert (record.tool_name, record.status) == ("meet", "cancelled")


async def test_what_a_program_leaves_behind_is_cancelled_and_told(
    sandbox: SandboxManager,
) -> None:
    gate = Gate(2)
    code = CodeExecutor(sandbox, ToolRegistry([gate.tool, gate.first]), guard=None)
    program = """
import threading
threading.Thread(target=tools.meet, daemon=True).start()
tools.first()
"""
    result = await code.execute(program)

    assert result.status == "ok", result.stderr
    told = {call.call.name: call.result.status for call in result.calls}
    assert told == {"meet": "cancelled", "first": "ok"}
    [record] = code.executor.records.query(tool_name="meet")
    assert record.status == "cancelled"


class Gate:
    """A tool that returns when it is called so many times at once."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.here = self.most = 0
        self.met = anyio.Event()
        self.one_is_here = anyio.Event()
        self.tool = tool(name="meet", timeout=60)(self.meet)
        self.first = tool(name="first", timeout=60)(self.wait_for_one)

    async def wait_for_one(self) -> None:
        """Wait for the first."""
        await self.one_is_here.wait()

    async def meet(self) -> int:
        """Wait for another."""
        self.here += 1
        self.one_is_here.set()
        self.most = max(self.most, self.here)
        met = self.met
        if self.here == self.wanted:
            self.here = 0
            self.met = anyio.Event()
            met.set()
        await met.wait()
        return self.wanted


async def test_failures_are_results_whatever_the_executor_does(
    sandbox: SandboxManager,
) -> None:
    registry = ToolRegistry([fail])
    executor = SequentialExecutor(registry, guard=None, raise_on_error=True)
    code = CodeExecutor(sandbox, registry, executor=executor)
    result = await code.execute(
        f"{TRY}\n[attempt(tools.fail, 1), attempt(tools.fail, '')]"
    )

    assert result.value == ["tool.validation", "tool.execution"], result.stderr
