"""A host that is killed in the middle of requests: what counts after, and is left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import ToolCall
from toolcell.guard import (
    ActionGuard,
    AgentPolicy,
    Approvals,
    ApprovalStore,
    Approve,
    SQLiteStore,
)
from toolcell.sandbox import Limits, SandboxConfig, SandboxManager
from toolcell.sandbox.spi import clean
from toolcell.tools import ConcurrentExecutor, ToolRegistry
from toolcell.tools.builtin import code_tools

from ...conftest import BackendRow
from ...support.cells.leak_check import owner_of
from ...support.cells.leftovers import containers_of, folders_of, groups_of
from ...support.cells.mirror import inspected
from ...support.cells.web_server import NAME, Site, resolve_here, self_signed, serving
from ...support.child import Child
from ...support.polling import until
from ...support.process_tree import below, runs

pytestmark = pytest.mark.anyio

PATIENCE = 60.0
POLICY: dict[str, Any] = {
    "agent_id": "a",
    "allow": ["run_python", "http.request"],
    "ask": [{"tools": ["http.request"], "when": {"method": {"equals": "POST"}}}],
    "rate_limits": [{"limit": "4/hour", "tools": ["http.request"]}],
    "budgets": [{"unit": "calls", "limit": 10, "tools": ["http.request"]}],
}
ASK = """
import threading, urllib.error, urllib.request
def ask(path, data=None):
    try:
        return urllib.request.urlopen(base + path, data).status
    except urllib.error.HTTPError as error:
        return error.headers["X-Toolcell-Refusal"]
"""
VICTIM = """
import sys, anyio, json
from toolcell.core import ToolCall
from toolcell.guard import *
from toolcell.sandbox import *
from toolcell.tools import *
from toolcell.tools.builtin import code_tools
folder, config, policy, code = sys.argv[1:]
async def resolver(host, port):
    return ["127.0.0.1"]
async def main():
    config_ = SandboxConfig.model_validate(json.loads(config))
    asked = ApprovalStore(folder + "/approvals.db")
    approvals = Approvals(asked, answered_elsewhere=True)
    guard = ActionGuard(
        [AgentPolicy.model_validate(json.loads(policy))],
        store=SQLiteStore(folder + "/state.db", deadline=60), approvals=approvals)
    async with SandboxManager(config_, resolver=resolver) as sandbox:
        registry = ToolRegistry([])
        executor = ConcurrentExecutor(registry, guard=guard, sandbox=sandbox)
        for each in code_tools(sandbox):
            registry.register(each)
        result = await executor.call(ToolCall(
            id="1", name="run_python", arguments={"code": code}, agent_id="a"))
        print(result, flush=True)
anyio.run(main)
"""


def config(backend: BackendRow, port: int, certificate: Path) -> SandboxConfig:
    host = f"{NAME}:{port}"
    return backend.config(
        network=inspected(host, certificate), limits=Limits(wall_seconds=60)
    )


async def killed_meanwhile(
    settings: SandboxConfig, site: Site, folder: Path, approvals: Approvals
) -> tuple[str, dict[int, str]]:
    """Kill a host that sends a request and holds another; return it and its cells."""
    code = f"""base = {site.url!r}
{ASK}
print(ask("/done"))
for request in (("/slow",), ("/pay", b"1")):
    threading.Thread(target=ask, args=request).start()
"""
    command = [sys.executable, "-I", "-c", VICTIM, str(folder)]
    command.append(settings.model_dump_json(exclude_unset=True))
    command += [json.dumps(POLICY), code]
    with Child(command, stdout=subprocess.PIPE, text=True) as victim:
        name = owner_of(victim.pid)
        with anyio.fail_after(PATIENCE):
            while len(site.hits) < 2 or not await approvals.pending():
                assert victim.poll() is None
                await anyio.sleep(0.01)
        cells = below(victim.pid)
        victim.kill()
    site.go_on.set()
    return name, cells


async def left_by(name: str, cells: dict[int, str], backend: BackendRow) -> list[Any]:
    """Return what is left of a dead host once another one has begun."""
    await until(lambda: not any(runs(*each) for each in cells.items()))
    await clean()
    left: list[Any] = [*folders_of(name), *groups_of(name)]
    if backend.options["backend"] == "docker":
        import docker

        client = docker.from_env()
        left += containers_of(client.api, name)
        client.close()
    return left


async def asked_later(
    sandbox: SandboxManager, store: SQLiteStore, approvals: Approvals, url: str
) -> tuple[Any, Any]:
    """Return what comes of more requests, and the budget that they leave."""
    policy = AgentPolicy.model_validate(POLICY)
    guard = ActionGuard([policy], store=store, approvals=approvals)
    registry = ToolRegistry(code_tools(sandbox))
    executor = ConcurrentExecutor(registry, guard=guard, sandbox=sandbox)
    asks = '[ask("/pay", b"1"), ask("/pay", b"1"), ask("/more"), ask("/last")]'
    arguments: dict[str, Any] = {"code": f"base = {url!r}\n{ASK}\n{asks}"}
    call = ToolCall(id="2", name="run_python", arguments=arguments, agent_id="a")
    content: Any = (await executor.call(call)).content
    again = ToolCall(id="3", name="http.request", arguments={}, agent_id="a")
    decision = await guard.decide(again)
    return content["value"], decision.remaining["a calls/total (http.request)"]


@pytest.mark.promise("boundary-3")
async def test_a_killed_host_has_sent_counted_and_left_what_it_should(
    backend: BackendRow, tmp_path: Path
) -> None:
    certificate = self_signed(tmp_path)
    # Not the guard's file: after 0.5 s of waiting for its disk a request is refused.
    asked = ApprovalStore(tmp_path / "approvals.db")
    approvals = Approvals(asked, answered_elsewhere=True, wait_seconds=0)
    with serving(certificate) as site:
        settings = config(backend, site.port, certificate)
        dead = await killed_meanwhile(settings, site, tmp_path, approvals)
        [request] = await approvals.pending()
        await approvals.answer(request.id, Approve(approver="anna"))
        async with SandboxManager(settings, resolver=resolve_here) as sandbox:
            assert await left_by(*dead, backend) == []
            assert "/pay" not in "".join(site.hits)
            store = SQLiteStore(tmp_path / "state.db", deadline=PATIENCE)
            found, left = await asked_later(sandbox, store, approvals, site.url)
            await store.aclose()

    # The answer is good for one request; the two of before have been counted.
    assert found == [200, "approval_unavailable", 200, "rate_limited"]
    paths = sorted(hit.split()[-1] for hit in site.hits)
    assert paths == ["/done", "/more", "/pay", "/slow"]
    assert left == 6
