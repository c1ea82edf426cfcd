"""Clients act as agents: rules, approvals, budgets and the audit log hold."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from toolcell.guard import Approve
from toolcell.host.e2b.operations.code import CODE, CodeArguments
from toolcell.host.e2b.operations.commands import COMMAND, CommandArguments
from toolcell.host.e2b.operations.lifetimes import SET_TIMEOUT, TimeoutArguments
from toolcell.host.operator.events import Event
from toolcell.host.operator.live_calls import LiveCall
from toolcell.sandbox import Limits, Network

from ...support.polling import PATIENCE
from .served_sandboxes import Service, approve_next, served, written

pytestmark = pytest.mark.anyio

RULES = """
[[policies]]
agent_id = "a"
allow = [
    "sandbox.create", "sandbox.code", "sandbox.read",
    { tools = ["sandbox.command"], when = { command = { matches = "echo [a-z]*" } } },
    { tools = ["sandbox.write"], when = { path = { under = "/home/user/ok" } } },
]
ask = ["sandbox.network"]
[[policies]]
agent_id = "b"
"""
LIMITS = """
[[policies]]
agent_id = "a"
allow = ["sandbox.*"]
rate_limits = [{ limit = "2/hour", tools = ["sandbox.read"] }]
budgets = [{ unit = "cpu_ms", limit = 400000 }]
[[policies]]
agent_id = "b"
allow = ["sandbox.*"]
"""


async def test_rules_see_the_arguments(tmp_path: Path) -> None:
    async with served(tmp_path, policies=RULES) as service:
        sandbox = await service.create()
        allowed, _ = await sandbox.command("echo hello")
        config = {"cmd": "/bin/bash", "args": ["-l", "-c", "curl evil"]}
        denied = await sandbox.events("process.Process/Start", process=config)
        inside = await sandbox.write("ok/x", b"1")
        outside = await sandbox.write("ok/../x", b"1")
        nobody = await service.http.post(
            "/sandboxes", json={}, headers=service.key("b")
        )

    assert allowed == b"hello\n"
    assert denied[-1]["error"]["code"] == "permission_denied"
    assert (inside.status_code, outside.status_code) == (200, 403)
    assert nobody.status_code == 403


async def test_a_person_is_asked(tmp_path: Path) -> None:
    async with served(tmp_path, "approval_seconds = 60", policies=RULES) as service:
        sandbox = await service.create()
        url = f"/sandboxes/{sandbox.id}/network"
        asked: dict[str, Any] = {"allow_internet_access": False}
        statuses = []

        async def put() -> None:
            answer = await service.http.put(url, json=asked, headers=service.key())
            statuses.append(answer.status_code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(put)
            with anyio.fail_after(60):
                while not (found := await service.host.approvals.pending()):
                    await anyio.sleep(0.01)
            await service.host.approvals.answer(found[0].id, Approve(approver="ann"))

    assert statuses == [204]


async def test_rates_and_budgets_are_limits(tmp_path: Path) -> None:
    async with served(tmp_path, policies=LIMITS) as service:
        sandbox = await service.create(timeout=300)
        reads = [await sandbox.read("x") for _ in range(3)]
        config = {"cmd": "bash", "args": ["-c", "exit"]}
        fits = await sandbox.events(
            "process.Process/Start", timeout_ms=300_000, process=config
        )
        await service.http.post(
            f"/sandboxes/{sandbox.id}/timeout",
            json={"timeout": 3600},
            headers=service.key(),
        )
        too_long = await sandbox.events(
            "process.Process/Start", timeout_ms=3_600_000, process=config
        )

    assert [each.status_code for each in reads] == [404, 404, 429]
    refusal = reads[-1].json()
    assert refusal["reason"] == "rate_limited"
    assert 0 < refusal["retry_after"] <= int(reads[-1].headers["retry-after"])
    assert fits[-1] == {}
    assert too_long[-1]["error"]["code"] == "resource_exhausted"


@pytest.mark.promise("JA4")
@pytest.mark.parametrize(
    ("reach", "cpus", "processors"), [(0, 2, 2), (1_000, 2, 2), (0, 0.5, 1)]
)
async def test_acts_hold_no_more_than_their_limits_can_cost(
    reach: int, cpus: float, processors: int
) -> None:
    limits = Limits(wall_seconds=5, cpus=cpus, cpu_seconds=1, network_bytes=1_000)
    network = Network.allow(["a.example:443"]) if reach else Network.none
    sandbox: Any = SimpleNamespace(
        session=SimpleNamespace(limits=limits, network=network),
        commands={1: SimpleNamespace(has_limit=False)},
        end_at=time.time(),
    )
    facts: dict[str, Any] = {"sandbox_id": "s"}
    command = CommandArguments(command="x", cwd="/", timeout_seconds=3, **facts)
    code = CodeArguments(code="x", language="python", **facts)
    longer = TimeoutArguments(timeout=60, **facts)
    assert COMMAND.cost and CODE.cost and SET_TIMEOUT.cost
    held = SET_TIMEOUT.cost(sandbox, longer)

    limited = {"wall_ms": 3_000, "cpu_ms": 3_000 * processors, "bytes": reach}
    assert COMMAND.cost(sandbox, command) == limited
    ended = {"wall_ms": 5_000, "cpu_ms": 1_000, "bytes": reach}
    assert CODE.cost(sandbox, code) == ended
    # What the command that runs may send and receive is held since its start.
    assert 60_000 <= held["wall_ms"] < 120_000
    assert 0 <= processors * held["wall_ms"] - held["cpu_ms"] < processors
    assert held["bytes"] == 0


async def test_calls_are_in_the_records(tmp_path: Path) -> None:
    key = "sk-ant-api03-" + "x" * 40
    async with served(tmp_path, policies=RULES) as service:
        sandbox = await service.create(envVars={"MY_VALUE": "canary-7f31"})
        await sandbox.command("echo hello")
        await sandbox.command(f"curl -d {key}")
        await sandbox.read("missing")
        await sandbox.code(code="raise SystemExit(3)")
        records = await written(service, 5)

    found = {(record.tool_name[8:], record.status): record for record in records}
    create, code = found["create", "ok"], found["code", "ok"]
    allowed, denied = found["command", "ok"], found["command", "denied"]
    missing = found["read", "error"]
    assert {record.agent_id for record in records} == {"a"}
    assert create.tool_name == "sandbox.create"
    assert create.arguments["env"] == ["MY_VALUE"]
    assert (allowed.status, allowed.verdict) == ("ok", "allowed")
    assert allowed.result == {"status": "ok", "exit_code": 0}
    assert allowed.arguments["command"] == "echo hello"
    assert 0 < float(allowed.usage["wall_ms"]) <= allowed.duration_ms + 1
    assert allowed.backend == "subprocess"
    assert (denied.status, denied.verdict, denied.usage) == ("denied", "denied", {})
    assert denied.reason == "not_allowed"
    assert (missing.status, missing.error_kind) == ("error", "not_found")
    assert code.result == {"status": "exit", "exit_code": 3}
    assert key not in str(records)
    assert "canary" not in str(records)


async def test_a_command_that_is_lost_is_charged_its_time(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        async with sandbox.started("sleep", "60"):
            await service.http.delete(f"/sandboxes/{sandbox.id}", headers=service.key())
        [lost] = service.host.executor.records.query(tool_name="sandbox.command")

    assert (lost.status, lost.verdict, lost.result) == ("cancelled", "allowed", None)
    assert 0 < float(lost.usage["wall_ms"]) <= lost.duration_ms + 1


async def test_calls_have_spans(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    async with served(tmp_path, policies=RULES) as service:
        sandbox = await service.create()
        await sandbox.command("echo hello")
        await sandbox.read("missing")
        await written(service, 3)
        [record] = service.host.executor.records.query(tool_name="sandbox.command")

    found = {span.name: span for span in spans.get_finished_spans()}
    command = found["execute_tool sandbox.command"]
    read = found["execute_tool sandbox.read"]
    assert "execute_tool sandbox.create" in found
    assert dict(command.attributes or {}) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "sandbox.command",
        "gen_ai.tool.call.id": record.call_id,
        "gen_ai.tool.type": "function",
        "gen_ai.agent.id": "a",
        "toolcell.status": "ok",
    }
    assert (read.attributes or {})["error.type"] == "not_found"
    assert not read.status.is_ok


async def test_calls_are_in_the_audit_log(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    settings = f'[audit]\npath = "{log}"\n'
    async with served(tmp_path, settings) as service:
        sandbox = await service.create()
        await sandbox.command("true")
        await sandbox.write("x", b"")

    records = [json.loads(line) for line in log.read_text().splitlines()]
    tools = [record["tool"] for record in records if record.get("event") == "outcome"]
    assert tools == ["sandbox.create", "sandbox.command", "sandbox.write"]


async def live_call(service: Service, tool: str, state: str = "running") -> LiveCall:
    """Return the call of a tool that lives, once it was admitted or waits."""
    with anyio.fail_after(60):
        while True:
            for call in service.host.live_calls.all():
                if (call.tool, call.state) == (tool, state):
                    if call.deadline or state == "parked":
                        return call
            await anyio.sleep(0.01)


async def test_a_command_is_seen_while_it_runs_and_can_be_ended(tmp_path: Path) -> None:
    seen: list[Event] = []
    async with served(tmp_path) as service:
        sandbox = await service.create()
        ended: list[Any] = []

        async def run() -> None:
            config = {"cmd": "sleep", "args": ["600"], "envs": {"KEY": "canary-1"}}
            start = partial(sandbox.events, "process.Process/Start", stdin=False)
            ended.append(await start(process=config))

        with service.host.event_bus.subscribed(seen.append), anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                call = await live_call(service, "sandbox.command")
                shown = call.arguments(service.host.redactor)
                assert (call.agent_id, call.run_id) == ("a", sandbox.id)
                while call.stop is None:
                    await anyio.sleep(0.01)
                await service.host.live_calls.cancel(call, by="ann")
        last = (await written(service, 2))[-1]
        after, _ = await sandbox.command("echo on")

    assert shown["argv"] == ["sleep", "600"]
    assert "canary-1" not in json.dumps(dict(shown))
    assert [each.kind for each in seen][:2] == ["call.started", "call.ended"]
    assert (last.status, last.error_kind) == ("cancelled", "tool.cancelled")
    assert last.result == {"status": "cancelled", "exit_code": None}
    assert "end" in ended[0][-2]["event"]
    assert after == b"on\n"


async def test_code_is_ended_and_its_context_goes_on(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        await sandbox.code(code="x = 41")
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                endless = partial(sandbox.code, code="while True: pass")
                tasks.start_soon(endless)
                call = await live_call(service, "sandbox.code")
                while call.stop is None:
                    await anyio.sleep(0.01)
                await service.host.live_calls.cancel(call, by="ann")
        lines = await sandbox.code(code="x + 1")

    assert call.status == "cancelled"
    assert "42" in json.dumps(lines)


async def test_code_that_waits_for_its_turn_is_ended_when_it_begins(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        headers = {**sandbox.headers, "e2b-sandbox-port": "49999"}
        made = await sandbox.http.post("/contexts", json={}, headers=headers)
        context = made.json()["id"]
        # Its first run leads it into its folder.
        await sandbox.code(code="1", context_id=context)
        ended = dict[str, list[dict[str, Any]]]()

        async def run(name: str, **message: Any) -> None:
            ended[name] = await sandbox.code(**message)

        waits = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n42"
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(run, "first", code=waits))
                first = await live_call(service, "sandbox.code")
                while first.stop is None:
                    await anyio.sleep(0.01)
                again = {"code": "while True: pass", "context_id": context}
                tasks.start_soon(partial(run, "second", **again))
                while (second := service.host.live_calls.all()[-1]) is first:
                    await anyio.sleep(0.01)
                while second.stop is None:
                    await anyio.sleep(0.01)
                cancel = partial(service.host.live_calls.cancel, by="ann")
                tasks.start_soon(cancel, second)
                while not second.cancelled_by:
                    await anyio.sleep(0.01)
                await sandbox.write("go", b"")

    assert "42" in json.dumps(ended["first"])
    assert (first.status, second.status) == ("ok", "cancelled")


ASKS = """
[[policies]]
agent_id = "a"
allow = ["sandbox.create"]
ask = ["sandbox.command"]
[[policies]]
agent_id = "b"
"""


async def test_a_call_that_waits_for_a_person_is_parked_and_can_be_ended(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, "approval_seconds = 60", policies=ASKS) as service:
        sandbox = await service.create()
        ended: list[Any] = []

        async def run() -> None:
            config = {"cmd": "echo", "args": [], "envs": {"KEY": "canary-1"}}
            start = partial(sandbox.events, "process.Process/Start", process=config)
            ended.append(await start())

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                call = await live_call(service, "sandbox.command", "parked")
                shown = call.arguments(service.host.redactor)
                await service.host.live_calls.cancel(call, by="ann")
        last = service.host.executor.records.all_records()[-1]
        assert service.host.live_calls.all() == []

    assert "canary-1" not in json.dumps(dict(shown))
    assert ended[0][-1]["error"]["code"] == "canceled"
    assert (last.status, last.error_kind) == ("cancelled", "tool.cancelled")


@pytest.mark.promise("R4")
async def test_an_edited_command_runs_and_is_recorded(tmp_path: Path) -> None:
    async with served(tmp_path, "approval_seconds = 60", policies=ASKS) as service:
        sandbox = await service.create()
        outputs: list[bytes] = []

        async def run() -> None:
            outputs.append((await sandbox.command("echo DANGEROUS"))[0])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await approve_next(service, command="echo harmless")
        [record] = service.host.executor.records.query(tool_name="sandbox.command")

    assert outputs == [b"harmless\n"]
    assert record.arguments["command"] == "echo harmless"


BUDGETS = """
[[policies]]
agent_id = "a"
allow = ["sandbox.*"]
budgets = [
    { unit = "cpu_ms", limit = 300000, window = "day" },
    { unit = "wall_ms", limit = 60000, window = "day" },
]
[[policies]]
agent_id = "b"
"""
STORM = """
import os, sys, time
while time.process_time() < 0.8: pass
with open("told" + sys.argv[1], "w") as file: print(time.process_time(), file=file)
os.rename("told" + sys.argv[1], "used-" + sys.argv[1])
"""


async def used(service: Service, unit: str) -> int:
    found = await service.host.guard.limits("a", "sandbox.command")
    return sum(int(each.used) for each in found if each.unit == unit)


@pytest.mark.promise("R23")
async def test_a_storm_that_a_command_leaves_behind_is_charged_as_it_counts_itself(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, policies=BUDGETS) as service:
        sandbox = await service.create(timeout=55)
        each = f"(setsid python3 -c '{STORM}' $n >/dev/null 2>&1 &)"
        await sandbox.command(f"for n in 0 1 2; do {each}; done")
        told: list[bytes] = []
        with anyio.fail_after(PATIENCE):
            while len(told) < 3:
                await anyio.sleep(2)
                told = (await sandbox.command("cat used-*"))[0].split()
        oracle = sum(map(float, told)) * 1000
        await service.http.delete(f"/sandboxes/{sandbox.id}", headers=service.key())
        charged = await used(service, "cpu_ms")
        commands = service.host.executor.records.query(tool_name="sandbox.command")

    charged -= sum(int(command.usage["cpu_ms"]) for command in commands)
    assert 0.95 * oracle <= charged <= 1.05 * oracle + 150


@pytest.mark.promise("R24")
async def test_a_longer_life_is_paid_for(tmp_path: Path) -> None:
    async with served(tmp_path, policies=BUDGETS) as service:
        sandbox = await service.create(timeout=30)
        url = f"/sandboxes/{sandbox.id}/timeout"

        async def prolong(seconds: int) -> int:
            answer = await service.http.post(
                url, json={"timeout": seconds}, headers=service.key()
            )
            return int(answer.status_code)

        idle = await prolong(30)
        await sandbox.start("sleep", "600")
        longer = [await prolong(seconds) for seconds in (300, 50, 300)]
        held = await service.host.guard.limits("a", "sandbox.command")
        await service.http.delete(f"/sandboxes/{sandbox.id}", headers=service.key())

    assert idle == 204
    assert longer == [429, 204, 429]
    [wall] = [int(each.held) for each in held if each.unit == "wall_ms"]
    assert 45_000 <= wall <= 51_000
