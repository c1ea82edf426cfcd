"""Calls of a running program that wait for a person, on every backend."""

from __future__ import annotations

import itertools
import json
from typing import Any

import anyio
import pytest
from pydantic import JsonValue

from toolcell.core import ToolCall
from toolcell.guard import (
    ActionGuard,
    AgentPolicy,
    ApprovalRequest,
    Approvals,
    Approve,
    Reject,
)
from toolcell.sandbox import HostCalls, Limits, SandboxManager
from toolcell.sandbox.client.host_calls import CallServer
from toolcell.sandbox.network.run_clock import RunClock
from toolcell.sandbox.spi import pause_deadline
from toolcell.tools import (
    CodeExecutor,
    ConcurrentExecutor,
    RunContext,
    ToolRegistry,
    tool,
)

pytestmark = pytest.mark.anyio

WALL = 4.0
"""Seconds that a program may run: more than it needs on a slow machine."""

LIMITS = Limits(wall_seconds=WALL)
TRY = """
def attempt(tool, *args):
    try:
        return tool(*args)
    except ToolError as error:
        return error.code
"""


class Person:
    """Says yes, after longer than a program may run; or never says anything."""

    def __init__(self, seconds: float = WALL + 0.1, *, answers: bool = True) -> None:
        self.asked: list[ApprovalRequest] = []
        self._seconds = seconds
        self._answers = answers

    async def __call__(self, request: ApprovalRequest) -> Approve | Reject | None:
        self.asked.append(request)
        if not self._answers:
            await anyio.sleep_forever()
        await anyio.sleep_until(anyio.current_time() + self._seconds)
        return Approve(approver="anna")


@tool
async def pay(amount: int) -> int:
    """Pay."""
    return amount


def code_with(person: Person, sandbox: SandboxManager) -> CodeExecutor:
    guard = ActionGuard(
        [AgentPolicy(agent_id="a", allow=["outer"], ask=["pay"])],
        approvals=Approvals(handler=person, wait_seconds=30),
    )
    return CodeExecutor(sandbox, ToolRegistry([pay]), guard=guard)


async def test_a_clock_stands_still_while_a_person_thinks(
    sandbox: SandboxManager,
) -> None:
    code = code_with(Person(), sandbox)
    run = RunContext(approval_seconds=30)
    result = await code.execute("tools.pay(5)", agent_id="a", limits=LIMITS, run=run)

    assert (result.status, result.value) == ("ok", 5), result.stderr
    assert result.usage.wall_ms > WALL * 1000
    # It runs on afterwards, and not until the person's time is over.
    spent = await code.execute(
        "tools.pay(5)\nwhile True: pass", agent_id="a", limits=LIMITS, run=run
    )
    assert spent.status == "timeout"
    assert spent.usage.wall_ms < 25_000


async def test_a_call_that_nobody_answers_is_denied_and_the_program_goes_on(
    sandbox: SandboxManager,
) -> None:
    code = code_with(Person(answers=False), sandbox)
    result = await code.execute(
        f"{TRY}\nattempt(tools.pay, 5)",
        agent_id="a",
        limits=LIMITS,
        run=RunContext(approval_seconds=WALL + 0.1),
    )

    assert (result.status, result.value) == ("ok", "guard.denied"), result.stderr
    [call] = result.calls
    assert call.result.error is not None
    assert call.result.error.details["reason"] == "approval_unavailable"


async def test_no_program_gains_more_than_its_approval_seconds(
    sandbox: SandboxManager,
) -> None:
    code = code_with(Person(answers=False), sandbox)
    run = RunContext(approval_seconds=0.5)
    program = f"{TRY}\nn = 0\nwhile True: n += 1; attempt(tools.pay, n)"
    result = await code.execute(program, agent_id="a", limits=LIMITS, run=run)

    assert result.status == "timeout", result.stderr
    assert (WALL + 0.5) * 1000 <= result.usage.wall_ms < 20_000
    # Five calls at once stop the clock no longer than one.
    program = (
        f"{TRY}\nimport threading\n"
        "threads = [threading.Thread(target=attempt, args=(tools.pay, n))"
        " for n in range(5)]\n"
        "for each in threads: each.start()\n"
        "while True: pass"
    )
    run = RunContext(approval_seconds=4)
    result = await code.execute(program, agent_id="a", limits=LIMITS, run=run)
    assert result.status == "timeout", result.stderr
    assert result.usage.wall_ms < 20_000


async def test_one_run_asks_nobody_and_a_session_waits(
    sandbox: SandboxManager,
) -> None:
    person = Person(seconds=8)
    code = code_with(person, sandbox)
    denied = await code.execute(
        f"{TRY}\nattempt(tools.pay, 1)", agent_id="a", limits=LIMITS
    )
    assert (denied.value, person.asked) == ("guard.denied", [])
    async with sandbox.session(agent_id="a") as session:
        paid = await code.execute(
            "tools.pay(2)", agent_id="a", limits=LIMITS, session=session
        )
        assert (paid.value, len(person.asked)) == (2, 1), paid.stderr
        # The clock of the next run is its own.
        late = await code.execute(
            "while True: pass",
            agent_id="a",
            limits=Limits(wall_seconds=1),
            session=session,
        )
    assert late.status == "timeout"
    assert late.usage.wall_ms < 8_000


async def test_programs_around_the_one_that_waits_wait_too(
    sandbox: SandboxManager,
) -> None:
    run = RunContext(approval_seconds=30)
    registry = ToolRegistry([pay])

    @tool(timeout=WALL)
    async def outer() -> int | None:
        """Run a program."""
        result = await code.execute(
            "tools.pay(7)", agent_id="a", limits=LIMITS, run=run, session=inner
        )
        value = result.value
        return value if isinstance(value, int) else None

    registry.register(outer)
    guard = ActionGuard(
        [AgentPolicy(agent_id="a", allow=["outer"], ask=["pay"])],
        approvals=Approvals(handler=Person()),
    )
    code = CodeExecutor(sandbox, registry, guard=guard)
    # The time that it takes to make the inner cell is none of this.
    async with sandbox.session(agent_id="a") as inner:
        result = await code.execute(
            "tools.outer()", agent_id="a", limits=LIMITS, run=run
        )

    assert (result.status, result.value) == ("ok", 7), result.stderr


def executor_with(person: Person, outer: Any) -> ConcurrentExecutor:
    guard = ActionGuard(
        [AgentPolicy(agent_id="a", allow=["outer"], ask=["pay"])],
        approvals=Approvals(handler=person, wait_seconds=30),
    )
    return ConcurrentExecutor(ToolRegistry([pay, outer]), guard=guard)


async def test_the_deadline_of_a_tool_stands_still_with_a_call_that_it_makes() -> None:
    @tool(timeout=WALL)
    async def outer() -> list[JsonValue]:
        """Pay three times, the last two at once."""
        paid = [await executor.call(payment(1), run=run)]
        paid += await executor.execute([payment(2), payment(3)], run=run)
        return [each.content for each in paid]

    run, executor = RunContext(run_id="r"), executor_with(Person(), outer)
    call = ToolCall(id="0", name="outer", agent_id="a")
    result = await executor.call(call, run=run)
    assert (result.status, result.content) == ("ok", [1, 2, 3])
    assert int(result.usage["wall_ms"]) > 2 * WALL * 1000


async def test_no_tool_gains_more_than_its_approval_seconds() -> None:
    @tool(timeout=WALL)
    async def outer() -> None:
        """Ask again and again."""
        for number in itertools.count(1):
            await executor.call(payment(number), run=run)

    run = RunContext(approval_seconds=0.5)
    executor = executor_with(Person(answers=False), outer)
    call = ToolCall(id="0", name="outer", agent_id="a")
    result = await executor.call(call, run=run)
    assert result.status == "timeout"
    assert int(result.usage["wall_ms"]) >= (WALL + 0.5) * 1000
    inner = executor.records.query(tool_name="pay")
    assert inner[0].status == "denied"


def payment(number: int) -> ToolCall:
    arguments: dict[str, JsonValue] = {"amount": number}
    return ToolCall(id=f"p{number}", name="pay", arguments=arguments, agent_id="a")


async def test_a_cancelled_call_starts_the_clock_while_another_is_answered() -> None:
    told: list[float] = []
    parked = anyio.CancelScope()

    async def tell(header: dict[str, Any], payload: bytes | memoryview = b"") -> None:
        # The cell does not read.
        await anyio.sleep_forever()

    async def extend(seconds: float) -> None:
        told.append(seconds)

    async def handler(name: str, *_: object) -> dict[str, Any]:
        if name == "pay":
            with parked:
                async with pause_deadline():
                    await anyio.sleep_forever()
        return {"value": None}

    calls = HostCalls(names=("pay", "other"), handler=handler, max_pause_seconds=30)
    clock = RunClock(extend, calls.max_pause_seconds)
    clock.deadline = before = anyio.current_time() + 5
    async with CallServer(calls, tell, clock) as server:
        for number, name in enumerate(calls.names, 1):
            wish = {"name": name, "args": [], "kwargs": {}}
            server.serve(b"%08x" % number + json.dumps(wish).encode())
            await anyio.wait_all_tasks_blocked()
        parked.cancel()
        await anyio.wait_all_tasks_blocked()

    assert len(told) == 2
    assert sum(told) == pytest.approx(clock.deadline - before)
    assert 0 <= sum(told) < 10


async def test_elsewhere_there_is_no_clock_to_stop() -> None:
    async with pause_deadline(), pause_deadline():
        pass
