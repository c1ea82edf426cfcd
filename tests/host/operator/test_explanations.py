"""Why calls of before were decided as they were, and what they consist of."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import InvalidInputError, ToolCall
from toolcell.guard import Approve, CallFacts, Grant
from toolcell.host import Host, HostConfig
from toolcell.host.operator.checks import Doctor
from toolcell.host.operator.explanations import CallTree, call_tree, explain, why
from toolcell.host.operator.limits import agent_limits
from toolcell.sandbox import SandboxConfig
from toolcell.sandbox.spi import DoctorReport
from toolcell.tools import RunContext, ToolExecutionRecord
from toolcell.tools.spi import MemoryRecords

pytestmark = pytest.mark.anyio
CONFIG = """
[tools]
builtin = ["arithmetic", "clock"]
[state]
folder = "state"
[audit]
path = "audit.jsonl"
[[policies]]
agent_id = "a"
allow = ["calculate"]
budgets = [{ unit = "calls", limit = 1, per = "agent", window = "run" }]
[[policies.deny]]
name = "no dates"
tools = ["get_today_date"]
[[policies]]
agent_id = "b"
allow = ["calculate"]
"""


@pytest.fixture
async def host(tmp_path: Path) -> Any:
    path = tmp_path / "toolcell.toml"
    path.write_text(CONFIG)
    async with Host(HostConfig.from_file(path)) as opened:
        yield opened


async def explained(host: Host, call_id: str, agent_id: str = "a") -> Any:
    record = host.executor.records.get_record(call_id, agent_id=agent_id)
    assert record is not None
    return await why(
        record,
        guard=host.guard,
        registry=host.registry,
        audit=host.config.audit.path,
        redactor=host.redactor,
        seconds=host.config.tools.timeout_seconds,
    )


async def test_a_refusal_is_explained_by_its_rule(host: Host) -> None:
    await host.call("get_today_date", {}, agent_id="a", call_id="1")
    # The agent does not see the tool: the guard is not asked, and the log says so.
    found = await explained(host, "1")
    assert [each.record["reason"] for each in found.logged] == ["no_tool"]
    assert (found.now.verdict, found.now.rule) == ("deny", "no dates")
    assert [each.rule for each in found.now.tried] == ["no dates"]


async def test_a_refusal_by_a_limit_is_explained_in_its_run(host: Host) -> None:
    run = RunContext(run_id="r")
    for number in (1, 2):
        arguments = {"expression": f"{number}"}
        await host.call(
            "calculate", arguments, agent_id="a", call_id=f"{number}", run=run
        )
    found = await explained(host, "2")

    assert found.record.reason == "budget_exceeded"
    assert found.record.rule == "a calls/run"
    [logged] = found.logged
    assert (logged.record["verdict"], logged.record["rule"]) == ("deny", "a calls/run")
    # Today's answer is for the same run, as the log names it.
    assert (found.now.verdict, found.now.reason) == ("deny", "budget_exceeded")
    # Another agent's call has the same id.
    arguments = {"expression": "1"}
    await host.call("calculate", arguments, agent_id="b", call_id="1", run=run)
    first = await explained(host, "1")
    assert [each.record["event"] for each in first.logged] == ["decision", "outcome"]
    [limit] = await agent_limits(host.guard, host.registry, "a", "r")
    assert (limit.label, limit.maximum, limit.used) == ("a calls/run", 1, 1)


async def test_a_call_that_cannot_be_made_now_says_why(host: Host) -> None:
    await host.call("calculate", {"wrong": 1}, agent_id="a", call_id="1")
    found = await explained(host, "1")

    assert found.now is None
    assert "expression" in found.problem


def test_calls_inside_calls_are_a_tree_with_an_end() -> None:
    records = MemoryRecords()

    def add(call_id: str, parent: str | None, agent: str = "a") -> None:
        from datetime import UTC, datetime

        records.add(
            ToolExecutionRecord(
                *(call_id, "t", agent, parent, None, {}, "allowed", "ok"),
                *(datetime(2026, 1, 1, tzinfo=UTC), 1.0),
            )
        )

    add("1", None)
    add("1.1", "1")
    add("1.2", "1")
    add("1.1.1", "1.1")
    add("foreign", "1", "b")
    # Ids that callers chose may lead in circles.
    add("x", "y")
    add("y", "x")

    def names(tree: CallTree) -> Any:
        return tree.record.call_id, [names(each) for each in tree.inner]

    def tree(call_id: str, **limits: int) -> Any:
        record = records.get_record(call_id)
        assert record is not None
        return names(call_tree(records, record, **limits))

    assert tree("1") == ("1", [("1.1", [("1.1.1", [])]), ("1.2", [])])
    assert tree("1", depth=1) == ("1", [("1.1", []), ("1.2", [])])
    assert str(tree("x")).count("x") == 5


async def test_the_doctor_looks_once_a_minute() -> None:
    now, looks = [100.0], []

    async def examine(config: SandboxConfig) -> DoctorReport:
        looks.append(now[0])
        return DoctorReport(backend=None, level=None, checks=())

    doctor = Doctor(SandboxConfig(), examine=examine, clock=lambda: now[0])
    assert doctor.last is None
    for seconds in (0, 59, 1, 30):
        now[0] += seconds
        found = await doctor.examine()
        assert doctor.last is found
    assert looks == [100, 160]


REQUESTS = """
[[policies]]
agent_id = "a"
deny = [{ tools = ["http.*"], when = { "query.key" = { max_length = 9 } } }]
[[policies.allow]]
tools = ["http.request"]
via = "code"
when = { host = { equals = "a.test" }, path = { under = "/b%20c" } }
[[policies.allow]]
tools = ["net.connect"]
when = { host = { equals = "a.test" }, port = { equals = 8443 } }
[[policies.allow]]
tools = ["http.upgrade"]
via = "model"
[[policies.allow]]
tools = ["http.upgrade"]
tags = ["slow"]
[[policies.allow]]
tools = ["http.upgrade"]
versions = ["2"]
[[policies.allow]]
tools = ["http.upgrade"]
when = { scheme = { equals = "https" }, protocol = { equals = "websocket" } }
"""


@pytest.mark.promise("boundary-4")
async def test_an_act_of_a_program_is_explained_by_its_url(tmp_path: Path) -> None:
    path = tmp_path / "toolcell.toml"
    path.write_text(REQUESTS)
    async with Host(HostConfig.from_file(path)) as host:

        async def told(name: str, **arguments: Any) -> list[Any]:
            call = ToolCall(id="1", name=name, arguments=arguments, agent_id="a")
            made = await explain(
                host.guard, host.registry, call, run_id=None, seconds=1
            )
            return [made.rule, *(each.detail for each in made.tried)]

        url = "https://A.test/b%20c/%7e"
        assert await told("http.request", url=url) == [
            "a.allow[0]",
            "query.key: not met",
            "host: met; path: met",
        ]
        assert await told("http.request", url=f"{url}?key=1") == [
            "a.deny[0]",
            "query.key: met",
        ]
        assert await told("http.request", url="http://a.test:443", method="PUT") == [
            None,
            "query.key: not met",
            "host: met; path: not met",
        ]
        assert await told("net.connect", url="https://a.test:8443/x") == [
            "a.allow[1]",
            "host: met; port: met",
        ]
        for upgraded in ("https://a.test", "WSS://a.test/"):
            assert await told("http.upgrade", url=upgraded) == [
                "a.allow[5]",
                "query.key: not met",
                *("another via", "other tags", "another version"),
                "scheme: met; protocol: met",
            ]
        for name, arguments in (
            ("http.upgrade", {"url": "ws://a.test/"}),
            ("http.request", {"url": "wss://a.test/"}),
            ("http.request", {"url": url, "method": "TRACE"}),
            ("http.request", {"url": url, "method": "delete"}),
        ):
            with pytest.raises(InvalidInputError, match="could not send it either"):
                await told(name, **arguments)
        for wrong in ("a.test", "ftp://a.test/", "https://u@a.test/", f"{url}/../x"):
            with pytest.raises(InvalidInputError, match="could not send it either"):
                await told("http.request", url=wrong)
        with pytest.raises(InvalidInputError, match="`url` says host already"):
            await told("http.request", url=url, host="b.test")


ASKED = """
[state]
folder = "state"
[[policies]]
agent_id = "a"
ask = [{ tools = ["http.request"] }]
"""
GET: dict[str, Any] = {
    "method": "GET",
    "scheme": "https",
    "host": "a.test",
    "port": 443,
    "path": "/repos",
    "query": {},
    "content_type": None,
    "content_length": 0,
    "body_sha256": hashlib.sha256().hexdigest(),
}


@pytest.mark.promise("boundary-4")
@pytest.mark.parametrize(
    ("fixed", "others"),
    [(("host", "path"), ["allow", "allow"]), (None, ["ask", "ask"])],
)
async def test_an_act_that_a_grant_covers_is_explained_by_its_url(
    tmp_path: Path, fixed: tuple[str, ...] | None, others: list[str]
) -> None:
    path = tmp_path / "toolcell.toml"
    path.write_text(ASKED)
    async with Host(HostConfig.from_file(path)) as host:

        async def verdict(url: str, **more: Any) -> str:
            arguments = {"url": url, **more}
            act = ToolCall(
                id="2", name="http.request", arguments=arguments, agent_id="a"
            )
            decision = await explain(
                host.guard, host.registry, act, run_id=None, seconds=1
            )
            return decision.verdict

        assert await verdict("https://a.test/repos") == "ask"
        approvals = host.guard.approvals
        assert approvals is not None
        # A program's request, as the gate puts it before a person.
        act = ToolCall(id="1", name="http.request", arguments=GET, agent_id="a")
        await approvals.put(act, CallFacts(via="code", run_id="r"))
        [asked] = await approvals.pending()
        grant = Grant(arguments=fixed)
        await approvals.answer(asked.id, Approve(approver="anna", grant=grant))

        assert await verdict("https://A.test/repos") == "allow"
        assert await verdict("https://a.test/repos?x=1") == others[0]
        assert await verdict("https://a.test/repos", method="POST") == others[1]
        for url in ("https://a.test/other", "https://b.test/repos"):
            assert await verdict(url) == "ask"
        body = {"content_length": 1, "body_sha256": "0" * 64}
        assert await verdict("https://a.test/repos", **body) == others[0]
