"""The guard, idempotency, retries and records, as calls meet them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import JsonValue

from toolcell.core import StoreUnavailableError, ToolCall, ToolError
from toolcell.guard import (
    ActionGuard,
    AgentPolicy,
    ApprovalRequest,
    Approvals,
    Approve,
    Budget,
    Redactor,
    Reject,
)
from toolcell.tools import (
    CircuitBreaker,
    ConcurrentExecutor,
    Hook,
    RetryPolicy,
    RunContext,
    SQLiteIdempotency,
    ToolExecutionRecord,
    ToolRegistry,
    tool,
)
from toolcell.tools.spi import Invocation, MemoryIdempotency, Proceed

from ...support.sample_tools import Gates, blocked

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise(
        "GR-07 GR-09 GR-14 LT-05 LT-08 RG-31 RG-33 RG-34 RG-37 RG-39 RG-40 RG-52 "
        "RL-12 RL-23 X-12"
    ),
]
AT_ONCE = RetryPolicy(max_attempts=3, first_seconds=0)


class Counted:
    """Tools that count their runs."""

    def __init__(self) -> None:
        self.runs = 0
        self.fail_first = 0
        self.pay = tool(name="pay")(self._pay)
        self.look = tool(name="look", idempotent=True)(self._look)

    async def _pay(self, amount: int) -> str:
        return self._run(amount)

    async def _look(self, amount: int, unit: str = "usd") -> str:
        await anyio.lowlevel.checkpoint()
        return self._run(amount)

    def _run(self, amount: int) -> str:
        self.runs += 1
        if self.runs <= self.fail_first:
            raise OSError("the line is down")
        return f"{amount} #{self.runs}"


@pytest.fixture
def counted() -> Counted:
    return Counted()


def call(name: str, call_id: str = "1", agent: str = "a", **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=name, agent_id=agent, arguments=arguments)


def guard(**policy: Any) -> ActionGuard:
    return ActionGuard([AgentPolicy(agent_id="a", **policy)])


def executor(counted: Counted, **options: Any) -> ConcurrentExecutor:
    options = {"guard": None, **options}
    return ConcurrentExecutor(ToolRegistry([counted.pay, counted.look]), **options)


def verdicts(made: ConcurrentExecutor) -> list[tuple[str, str]]:
    return [(record.verdict, record.status) for record in made.records.all_records()]


async def test_what_is_not_allowed_does_not_run(counted: Counted) -> None:
    made = executor(counted, guard=guard(allow=["look"]))
    results = await made.execute(
        [
            call("pay", amount=1),
            call("look", "2", amount=1),
            call("look", "3", agent="b", amount=1),
        ]
    )

    assert [result.status for result in results] == ["denied", "ok", "denied"]
    assert counted.runs == 1
    error = results[0].error
    assert error is not None
    assert error.kind == "guard.denied"
    assert set(error.details) >= {"reason", "verdict"}
    assert sorted(verdicts(made)) == [
        ("allowed", "ok"),
        ("denied", "denied"),
        ("denied", "denied"),
    ]


async def test_the_guard_sees_validated_arguments_only() -> None:
    """Row 89: what was judged is what runs; an unknown key does not reach it."""
    ran = []

    @tool
    async def act(path: str, mode: str = "read") -> None:
        ran.append((path, mode))

    rule = {"tools": ["act"], "when": {"mode": {"equals": "read"}}}
    made = ConcurrentExecutor(ToolRegistry([act]), guard=guard(allow=[rule]))
    results = [
        await made.call(call("act", "1", path="x")),
        await made.call(call("act", "2", path="x", mode="write")),
    ]

    # The default is judged too, though nobody sent it.
    assert [result.status for result in results] == ["ok", "denied"]
    assert ran == [("x", "read")]


async def test_a_budget_of_calls_is_exact_in_a_batch(counted: Counted) -> None:
    policy = guard(allow=["pay"], budgets=[Budget(unit="calls", limit=7)])
    made = executor(counted, guard=policy)
    batch = [call("pay", str(number), amount=number) for number in range(50)]
    results = await made.execute(batch)

    assert counted.runs == 7
    assert [result.status for result in results].count("ok") == 7


@pytest.mark.promise("T26")
async def test_every_attempt_asks_the_guard_and_is_recorded(counted: Counted) -> None:
    counted.fail_first = 9
    policy = guard(allow=["look"], budgets=[Budget(unit="calls", limit=2)])
    made = executor(counted, guard=policy, retries={"look": AT_ONCE})
    result = await made.call(call("look", amount=1))

    assert counted.runs == 2, "the third attempt was not paid for"
    assert result.status == "denied"
    assert [(r.attempt, r.status, r.final) for r in made.records.all_records()] == [
        (1, "error", False),
        (2, "error", False),
        (3, "denied", True),
    ]


async def test_retries_heal_idempotent_tools_only(counted: Counted) -> None:
    counted.fail_first = 2
    made = executor(counted, retries={"look": AT_ONCE, "pay": AT_ONCE})
    assert (await made.call(call("look", amount=1))).content == "1 #3"
    counted.runs, counted.fail_first = 0, 9
    result = await made.call(call("pay", "2", amount=1))

    assert counted.runs == 1
    assert result.status == "error"
    [record] = made.records.query(call_id="2")
    assert (record.attempt, record.final) == (1, True)


async def test_what_a_tool_says_on_purpose_is_not_retried() -> None:
    runs = []

    @tool(idempotent=True)
    async def picky() -> None:
        runs.append(1)
        raise ToolError("no such city")

    registry = ToolRegistry([picky])
    made = ConcurrentExecutor(registry, guard=None, retries={"picky": AT_ONCE})
    await made.call(call("picky"))

    assert runs == [1]


async def test_an_open_circuit_refuses_before_the_guard(counted: Counted) -> None:
    counted.fail_first = 9
    breaker = CircuitBreaker(failure_threshold=2, recovery_seconds=60)
    policy = guard(allow=["*"], budgets=[Budget(unit="calls", limit=3)])
    made = executor(counted, guard=policy, circuit_breaker=breaker)
    results = [await made.call(call("pay", str(n), amount=n)) for n in range(5)]

    assert counted.runs == 2
    assert results[4].error is not None
    assert results[4].error.details["circuit"] == "open"
    assert breaker.state("pay") == "open"
    # What the circuit refused was not charged.
    assert (await made.call(call("look", "x", amount=1))).status == "error"
    assert counted.runs == 3


async def test_refusals_and_bad_arguments_open_no_circuit(counted: Counted) -> None:
    breaker = CircuitBreaker(failure_threshold=1)
    made = executor(counted, guard=guard(allow=["look"]), circuit_breaker=breaker)
    await made.call(call("pay", amount=1))
    await made.call(call("pay", "2", amount="x"))

    assert breaker.state("pay") == "closed"


@pytest.fixture(params=["memory", "sqlite"])
def keys(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        yield MemoryIdempotency()
    else:
        store = SQLiteIdempotency(tmp_path / "keys.db")
        yield store
        store.close()


async def test_the_same_call_runs_once(counted: Counted, keys: Any) -> None:
    made = executor(counted, idempotency=keys)
    same = [call("pay", amount=5)] * 20
    results = await made.execute(same)
    again = await made.call(call("pay", amount=5))

    assert counted.runs == 1
    assert {result.content for result in [*results, again]} == {"5 #1"}
    replays = [record.replayed for record in made.records.all_records()]
    assert replays.count(False) == 1
    assert len(replays) == 21


async def test_an_id_belongs_to_its_call_and_its_agent(
    counted: Counted, keys: Any
) -> None:
    made = executor(counted, idempotency=keys)
    await made.call(call("pay", amount=5))
    other_body = await made.call(call("pay", amount=6))
    other_tool = await made.call(call("look", amount=5))
    other_agent = await made.call(call("pay", agent="b", amount=5))

    assert [other_body.status, other_tool.status] == ["error", "error"]
    assert other_body.error is not None
    assert "another call" in other_body.error.message
    assert other_agent.content == "5 #2"


async def test_equal_calls_of_idempotent_tools_share_a_run(
    counted: Counted, keys: Any
) -> None:
    made = executor(counted, idempotency=keys)
    batch = [call("look", str(n), amount=5) for n in range(10)]
    batch.append(call("look", "explicit", unit="usd", amount=5))
    results = await made.execute(batch)

    # A default that is sent, or left out, is the same call.
    assert counted.runs == 1
    assert [result.call_id for result in results] == [each.id for each in batch]
    assert {result.content for result in results} == {"5 #1"}
    assert (await made.call(call("look", "x", amount=6))).content == "6 #2"
    assert (await made.call(call("look", "y", agent="b", amount=5))).content == "5 #3"
    run = RunContext(run_id="another")
    assert (await made.call(call("look", "z", amount=5), run=run)).content == "5 #4"
    assert (await made.call(call("pay", "p", amount=5))).content == "5 #5"


async def test_failures_are_not_kept(counted: Counted, keys: Any) -> None:
    counted.fail_first = 1
    made = executor(counted, idempotency=keys)
    first = await made.call(call("pay", amount=5))
    second = await made.call(call("pay", amount=5))

    assert (first.status, second.content) == ("error", "5 #2")


async def test_what_was_stopped_halfway_is_in_doubt(keys: Any) -> None:
    started, runs = anyio.Event(), []

    @tool
    async def transfer(amount: int) -> None:
        runs.append(amount)
        started.set()
        await anyio.sleep_forever()

    made = ConcurrentExecutor(ToolRegistry([transfer]), guard=None, idempotency=keys)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.call, call("transfer", amount=1))
        await started.wait()
        tasks.cancel_scope.cancel()
    again = await made.call(call("transfer", amount=1))

    assert runs == [1]
    assert again.error is not None
    assert again.error.details == {"outcome": "unknown"}
    assert [record.status for record in made.records.all_records()] == [
        "cancelled",
        "error",
    ]


async def test_a_refused_call_can_be_made_later(counted: Counted, keys: Any) -> None:
    policy = guard(allow=["look"])
    made = executor(counted, guard=policy, idempotency=keys)
    assert (await made.call(call("pay", amount=5))).status == "denied"
    policy.replace_policies([AgentPolicy(agent_id="a", allow=["pay"])])

    assert (await made.call(call("pay", amount=5))).content == "5 #1"


async def test_a_replay_needs_leave_and_costs_nothing(counted: Counted) -> None:
    policy = guard(allow=["pay"], budgets=[Budget(unit="calls", limit=3)])
    made = executor(counted, guard=policy)
    for _ in range(5):
        assert (await made.call(call("pay", amount=5))).content == "5 #1"
    assert (await made.call(call("pay", "2", amount=5))).content == "5 #2"
    policy.replace_policies([AgentPolicy(agent_id="a", allow=["look"])])

    assert (await made.call(call("pay", amount=5))).status == "denied"


@pytest.mark.promise("E-108", "GR-14")
async def test_secrets_never_reach_records(counted: Counted) -> None:
    canary = "canary-7f3a9c"

    @tool
    async def login(user: str, password: str, note: str) -> dict[str, str]:
        if user == "x":
            raise ValueError(f"bad {canary}")
        return {"token": canary, "said": note}

    made = ConcurrentExecutor(
        ToolRegistry([login]), guard=None, redactor=Redactor(secrets=[canary])
    )
    for number, user in enumerate(["ada", "x"]):
        given = {"user": user, "password": canary, "note": f"my {canary} key"}
        await made.call(call("login", str(number), **given))
    await made.call(call("login", "2", password=canary))

    records = made.records.all_records()
    assert len(records) == 3
    assert canary not in repr(records)
    assert records[0].arguments["user"] == "ada"


async def test_records_tell_what_it_cost() -> None:
    @tool(cost={"usd": "0.0100"}, version="2.1.0")
    async def search(query: str) -> str:
        return query

    made = ConcurrentExecutor(ToolRegistry([search]), guard=guard(allow=["search"]))
    asked = ToolCall(
        id="1", name="search", agent_id="a", parent_id="p", arguments={"query": "x"}
    )
    result = await made.call(asked)
    record = made.records.get_record("1", agent_id="a")

    assert isinstance(record, ToolExecutionRecord)
    assert record.cost_usd == "0.0100"
    assert record.tool_version == "2.1.0"
    assert (record.parent_id, record.backend) == ("p", "loop")
    assert result.usage == record.usage
    assert set(record.usage) == {"usd", "wall_ms"}
    assert record.duration_ms > 0


async def test_a_cancelled_call_is_settled_and_recorded(gates: Gates) -> None:
    policy = guard(
        allow=["wait"],
        max_concurrency=1,
        budgets=[Budget(unit="calls", limit=2)],
    )
    made = ConcurrentExecutor(ToolRegistry([gates.tool]), guard=policy)
    async with made.execute_streaming([call("wait", "1", number=0)]):
        await blocked()
    # The hold on the one place is given back.
    async with made.execute_streaming([call("wait", "2", number=1)]) as results:
        await blocked()
        gates.gates[1].set()
        assert [result.status async for _, result in results] == ["ok"]

    assert verdicts(made) == [("allowed", "cancelled"), ("allowed", "ok")]


async def test_a_guard_that_breaks_denies_and_nothing_runs(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = guard(allow=["*"])

    async def broken(*_: Any) -> Any:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(policy, "enter", broken)
    made = executor(counted, guard=policy)
    result = await made.call(call("pay", amount=1))

    assert (result.status, counted.runs) == ("denied", 0)
    assert verdicts(made) == [("denied", "denied")]


async def test_who_approves_may_change_what_runs() -> None:
    """What was approved is what runs, is validated again, and is what is recorded."""
    ran: list[int] = []
    seen: list[Any] = []

    @tool(requires_approval=True)
    async def pay(amount: int) -> int:
        ran.append(amount)
        return amount

    class See(Hook):
        async def around(self, invocation: Invocation, proceed: Proceed) -> JsonValue:
            seen.append(invocation.call.arguments)
            return await proceed()

    async def person(request: ApprovalRequest) -> Approve | Reject:
        edits: dict[int, Any] = {1: None, 2: {"amount": 20}, 3: {"amount": "much"}}
        asked = request.call.arguments["amount"]
        assert isinstance(asked, int)
        if asked not in edits:
            return Reject(approver="anna", reason="not today")
        return Approve(approver="anna", arguments=edits[asked])

    policy = ActionGuard(
        [AgentPolicy(agent_id="a", allow=["pay"])], approvals=Approvals(handler=person)
    )
    made = ConcurrentExecutor(ToolRegistry([pay]), guard=policy, hooks=[See()])
    results = [
        await made.call(call("pay", str(amount), amount=amount))
        for amount in (1, 2, 3, 4)
    ]

    assert [result.status for result in results] == ["ok", "ok", "error", "denied"]
    assert ran == [1, 20]
    assert seen == [{"amount": 1}, {"amount": 20}]
    told = [dict(record.arguments) for record in made.records.all_records()]
    assert told == [{"amount": 1}, {"amount": 20}, {"amount": "much"}, {"amount": 4}]
    assert "not today" in results[3].to_text()


async def test_what_needs_approval_is_denied_where_nobody_can_be_asked() -> None:
    @tool(requires_approval=True)
    async def pay(amount: int) -> int:
        return amount

    made = ConcurrentExecutor(ToolRegistry([pay]), guard=guard(allow=["pay"]))

    assert (await made.call(call("pay", amount=1))).status == "denied"


async def test_a_call_that_waits_for_a_person_holds_up_no_other(
    counted: Counted,
) -> None:
    asked, answered = anyio.Event(), anyio.Event()

    async def person(request: ApprovalRequest) -> Approve:
        asked.set()
        await answered.wait()
        return Approve(approver="anna")

    judge = ActionGuard(
        [AgentPolicy(agent_id="a", ask=["pay"], allow=["look"])],
        approvals=Approvals(handler=person),
    )
    made = ConcurrentExecutor(
        ToolRegistry([counted.pay, counted.look]), guard=judge, max_concurrency=1
    )
    paid: list[str] = []

    async def pay() -> None:
        paid.append(str((await made.call(call("pay", amount=1))).content))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pay)
            await asked.wait()
            beside = await made.call(call("look", "2", amount=2))
            answered.set()

    assert (beside.status, paid) == ("ok", ["1 #2"])
    # Its slot came back, and was given back once.
    assert (await made.call(call("look", "3", amount=3))).status == "ok"
