"""Clients act as agents: rules, approvals, budgets and the audit log hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.guard import Approve

from .served_sandboxes import served

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
    async with served(tmp_path, "approval_seconds = 20", policies=RULES) as service:
        sandbox = await service.create()
        url = f"/sandboxes/{sandbox.id}/network"
        asked: dict[str, Any] = {"allow_internet_access": False}
        statuses = []

        async def put() -> None:
            answer = await service.http.put(url, json=asked, headers=service.key())
            statuses.append(answer.status_code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(put)
            with anyio.fail_after(10):
                while not (found := await service.host.approvals.pending()):
                    await anyio.sleep(0.01)
            await service.host.approvals.answer(found[0].id, Approve(approver="ann"))

    assert statuses == [204]


async def test_rates_and_budgets_are_limits(tmp_path: Path) -> None:
    async with served(tmp_path, policies=LIMITS) as service:
        sandbox = await service.create(timeout=300)
        reads = [(await sandbox.read("x")).status_code for _ in range(3)]
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

    assert reads == [404, 404, 429]
    assert fits[-1] == {}
    assert too_long[-1]["error"]["code"] == "resource_exhausted"


async def test_calls_are_in_the_audit_log(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    settings = f'[audit]\npath = "{log}"\n'
    async with served(tmp_path, settings) as service:
        sandbox = await service.create()
        await sandbox.command("true")
        await sandbox.write("x", b"")

    records = [json.loads(line) for line in log.read_text().splitlines()]
    tools = [each["tool"] for each in records if each.get("event") == "outcome"]
    assert tools == ["sandbox.create", "sandbox.command", "sandbox.write"]
