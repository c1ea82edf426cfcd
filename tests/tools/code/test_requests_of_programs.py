"""Requests of programs as acts of their agent: rules, rates, approvals, records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import ToolCall
from toolcell.guard import (
    ActionGuard,
    AgentPolicy,
    ApprovalRequest,
    Approvals,
    Approve,
    AuditLog,
    Reject,
)
from toolcell.sandbox import Limits, Network, Sandbox, SandboxConfig, SandboxManager
from toolcell.sandbox.network import held_body
from toolcell.tools import (
    CodeExecutor,
    ConcurrentExecutor,
    ToolExecutionRecord,
    ToolRegistry,
    tool,
)
from toolcell.tools.builtin import code_tools

from ...support.cells.web_server import NAME, Site, resolve_here, serving
from ...support.cluster.local import local_cluster

pytestmark = pytest.mark.anyio

ASK = """
import urllib.error, urllib.request
def ask(method, path, data=None):
    request = urllib.request.Request(base + path, method=method, data=data)
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return [error.code, error.headers["X-Toolcell-Refusal"]]
"""
RUNS = ["run_python", "run_shell", "fetch"]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving() as plain:
        yield plain


@pytest.fixture(scope="module", params=[SandboxManager, local_cluster])
async def manager(request: pytest.FixtureRequest, site: Site) -> AsyncIterator[Sandbox]:
    config = SandboxConfig(
        backend="subprocess",
        network=Network.guarded(site.rules),
        limits=Limits(wall_seconds=60),
    )
    async with request.param(config, resolver=resolve_here) as manager:
        yield manager


@tool(sandboxed=True)
def fetch(url: str) -> int:
    """Fetch a page.

    Args:
        url: Its address.
    """
    import urllib.request

    return int(urllib.request.urlopen(url).status)


@dataclass
class World:
    """An executor whose programs reach a site, and what it has recorded."""

    executor: ConcurrentExecutor
    site: Site

    async def call(self, name: str, **arguments: Any) -> Any:
        call = ToolCall(id=f"c-{name}", name=name, arguments=arguments, agent_id="a")
        result = await self.executor.call(call)
        assert result.status == "ok", result.error
        return result.content

    async def python(self, code: str) -> Any:
        """Return what a program of `run_python` comes to."""
        content = await self.call("run_python", code=self.program(code))
        assert "value" in content, content
        return content["value"]

    def program(self, code: str) -> str:
        return f"base = {self.site.url!r}{ASK}{code}"

    def requests(self) -> list[ToolExecutionRecord]:
        """Return the records of requests, in the order in which they were made."""
        found = self.executor.records.query(tool_name="http.request")
        return sorted(found, key=lambda each: each.started_at)


def world(
    manager: Sandbox,
    site: Site,
    approvals: Approvals | None = None,
    **rules: Any,
) -> World:
    site.hits.clear()
    site.go_on.clear()
    guard = ActionGuard([AgentPolicy(agent_id="a", **rules)], approvals=approvals)
    registry = ToolRegistry([fetch])
    executor = ConcurrentExecutor(registry, guard=guard, sandbox=manager)
    code = CodeExecutor(manager, registry, executor=executor)
    for added in code_tools(manager, executor=code):
        registry.register(added)
    return World(executor, site)


READS = {
    "tools": ["http.request"],
    "when": {
        "host": {"equals": NAME},
        "method": {"one_of": ["GET", "HEAD"]},
        "path": {"under": "/repos"},
        "query.page": {"matches": "[0-9]+"},
    },
}


@pytest.mark.promise("boundary-4")
async def test_rules_judge_the_requests_of_every_program(
    manager: Sandbox, site: Site
) -> None:
    seen = world(manager, site, allow=[*RUNS, READS])

    found = await seen.python(
        '[ask("GET", "/repos/a?page=1"), ask("DELETE", "/repos/a?page=1"),'
        ' ask("GET", "/repos/a?page=x"), ask("GET", "/user?page=1")]'
    )
    refused = [403, "not_allowed"]
    assert found == [200, refused, refused, refused]
    script = seen.program('print(ask("GET", "/repos/b?page=2"), ask("PUT", "/"))')
    shell = await seen.call("run_shell", command=f"python3 - <<'END'\n{script}\nEND")
    assert shell["stdout"] == "200 [403, 'not_allowed']\n"
    assert await seen.call("fetch", url=f"{site.url}/repos/c?page=3") == 200
    assert [hit.split()[0::2] for hit in site.hits] == [
        ["GET", "/repos/a?page=1"],
        ["GET", "/repos/b?page=2"],
        ["GET", "/repos/c?page=3"],
    ]
    records = seen.requests()
    assert [(record.parent_id, record.verdict) for record in records] == [
        ("c-run_python", "allowed"),
        *[("c-run_python", "denied")] * 3,
        ("c-run_shell", "allowed"),
        ("c-run_shell", "denied"),
        ("c-fetch", "allowed"),
    ]
    assert records[0].arguments["query"] == {"page": ["1"]}
    outcome: Any = records[0].result
    assert (outcome["status"], outcome["verdict"]) == (200, "allowed")
    assert outcome["bytes_in"] > 0 < outcome["bytes_out"]


@pytest.mark.promise("boundary-4")
async def test_rates_count_requests(manager: Sandbox, site: Site) -> None:
    limit = {"limit": "2/hour", "tools": ["http.request"]}
    seen = world(manager, site, allow=[*RUNS, "http.*"], rate_limits=[limit])

    found = await seen.python('[ask("GET", f"/{n}") for n in range(3)]')
    assert found == [200, 200, [403, "rate_limited"]]
    assert len(site.hits) == 2


@pytest.mark.promise("boundary-4")
async def test_a_person_decides_about_a_request(manager: Sandbox, site: Site) -> None:
    shown: list[dict[str, Any]] = []

    async def person(request: ApprovalRequest) -> Approve | Reject:
        shown.append({**request.call.arguments})
        if request.call.arguments["path"] == "/no":
            return Reject(approver="p")
        return Approve(approver="p")

    seen = world(
        manager,
        site,
        Approvals(handler=person),
        allow=RUNS,
        ask=[{"tools": ["http.request"], "when": {"method": {"equals": "POST"}}}],
    )

    code = '[ask("POST", "/yes", b"hi"), ask("POST", "/no", b"hi")]'
    found = await seen.python(code)
    assert found == [200, [403, "approval_denied"]]
    assert [each["content_length"] for each in shown] == [2, 2]
    assert [hit.split()[2] for hit in site.hits] == ["/yes"]


@pytest.mark.promise("boundary-9")
async def test_a_person_sees_the_body_that_is_sent(
    manager: Sandbox, site: Site
) -> None:
    shown: list[ApprovalRequest] = []

    async def person(request: ApprovalRequest) -> Approve:
        shown.append(request)
        return Approve(approver="p")

    ask = {"tools": ["http.request"], "when": {"method": {"equals": "POST"}}}
    seen = world(manager, site, Approvals(handler=person), allow=RUNS, ask=[ask])
    code = """
body = b"pay anna\\n" * 400_000
urllib.request.urlopen(urllib.request.Request(base + "/pay", body)).read().decode()
"""
    digest = hashlib.sha256(b"pay anna\n" * 400_000).hexdigest()

    assert await seen.python(code) == digest
    [request] = shown
    told = "Body, as the program wrote it: 3,600,000 bytes, of which 4,096 are shown"
    assert request.preview.startswith(f"{told} as text:\npay anna\npay anna\n")
    assert request.call.arguments["body_sha256"] == digest
    [record] = seen.requests()
    assert record.arguments["body_sha256"] == digest


@pytest.mark.promise("boundary-9")
async def test_a_secret_is_redacted_in_bodies_that_are_no_text_too(
    manager: Sandbox, site: Site, tmp_path: Path
) -> None:
    async def person(request: ApprovalRequest) -> Approve:
        return Approve(approver="p")

    file, secret = tmp_path / "audit.jsonl", "ghp_" + "a1" * 18
    with AuditLog(file) as log:
        approvals = Approvals(handler=person, audit=log)
        seen = world(manager, site, approvals, allow=RUNS, ask=["http.request"])
        code = """
[ask("POST", "/pay", each + b"ghp_" + b"a1" * 18) for each in (b"", b"\\0", b"\\xff")]
"""
        assert await seen.python(code) == [200] * 3

    records = [json.loads(line) for line in file.read_text().splitlines()]
    previews = [record["preview"] for record in records if "preview" in record]
    assert [preview.partition("\n")[2] for preview in previews] == [
        "[redacted]",
        ".[redacted]",
        ".[redacted]",
    ]
    assert secret not in file.read_text()


@pytest.mark.promise("boundary-9")
async def test_an_approval_is_for_one_body_and_for_no_other(
    manager: Sandbox, site: Site
) -> None:
    approvals = Approvals(answered_elsewhere=True, wait_seconds=0.3)
    seen = world(manager, site, approvals, allow=RUNS, ask=["http.request"])
    away = [403, "approval_unavailable"]

    assert await seen.python('ask("POST", "/pay", b"1 to anna")') == away
    [request] = await approvals.pending()
    await approvals.answer(request.id, Approve(approver="p"))
    bodies = 'b"9 to anna", b"1 to anna"'
    script = seen.program(f'for body in ({bodies}): print(ask("POST", "/pay", body))')
    shell = await seen.call("run_shell", command=f"python3 - <<'END'\n{script}\nEND")
    assert shell["stdout"].splitlines() == [str(away), "200"]
    assert len(site.hits) == 1


@pytest.mark.promise("boundary-9")
async def test_no_one_is_asked_about_a_body_that_does_not_fit(
    manager: Sandbox, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_body, "MAX_BODY_BYTES", 1_000)
    approvals = Approvals(answered_elsewhere=True)
    seen = world(manager, site, approvals, allow=RUNS, ask=["http.request"])

    assert await seen.python('ask("POST", "/pay", bytes(1_001))') == [
        *(403, "approval_unavailable")
    ]
    assert await approvals.pending() == []
    [record] = seen.requests()
    assert (record.status, record.reason) == ("denied", "approval_unavailable")
    assert site.hits == []


@pytest.mark.promise("boundary-4")
async def test_an_edited_request_is_not_sent(manager: Sandbox, site: Site) -> None:
    async def person(request: ApprovalRequest) -> Approve:
        arguments = {**request.call.arguments, "path": "/other"}
        return Approve(approver="p", arguments=arguments)

    seen = world(
        manager, site, Approvals(handler=person), allow=RUNS, ask=["http.request"]
    )

    assert await seen.python('ask("GET", "/a")') == [403, "edited"]
    assert site.hits == []
    [record] = seen.requests()
    assert (record.verdict, record.status, record.reason) == (
        *("denied", "denied"),
        "edited",
    )
    assert record.arguments["path"] == "/a"
    assert record.result == {"edited": ["path"]}


@pytest.mark.promise("boundary-4")
async def test_a_request_ends_with_the_call_of_its_program(
    manager: Sandbox, site: Site
) -> None:
    seen = world(manager, site, allow=[*RUNS, "http.request"])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(seen.python, 'ask("GET", "/slow")')
        with anyio.fail_after(60):
            while not site.hits:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    site.go_on.set()
    [record] = seen.requests()
    assert (record.verdict, record.status) == ("allowed", "cancelled")
