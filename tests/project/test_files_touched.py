"""A reader follows one operation through few files: these counts may only fall."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcell.core import ToolCall
from toolcell.guard import ActionGuard, AgentPolicy, AuditLog
from toolcell.tools import ConcurrentExecutor, ToolRegistry, tool

from ..support.console.person import Client
from ..support.console.served import Service, served
from ..support.traced import Trace

GUARDED_CALL = 33
APPROVAL = 15
"""Files of the console and of approvals."""

APPROVAL_AND_CALL = 62
"""Those and all that the call touches until it ends: 60, and two that a loop in the
background may add on a slow machine."""


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.anyio
async def test_files_of_a_guarded_call(tmp_path: Path) -> None:
    trace = Trace()
    policy = AgentPolicy(agent_id="a", allow=["add"])
    with AuditLog(tmp_path / "audit.jsonl") as audit:
        guard = ActionGuard([policy], audit=audit)
        executor = ConcurrentExecutor(ToolRegistry([add]), guard=guard)
        for number in range(3):
            trace.on = number == 2  # What is loaded or made once does not count.
            call = ToolCall(
                id=f"{number}", name="add", arguments={"a": 1, "b": 2}, agent_id="a"
            )
            trace.start()
            try:
                result = await executor.call(call)
            finally:
                trace.stop()

    assert result.content == 3
    assert len(trace.files) <= GUARDED_CALL, sorted(trace.files)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Service, Trace]]:
    trace = Trace()
    trace.start()
    try:
        with served(tmp_path) as service:
            yield service, trace
    finally:
        trace.stop()


def test_files_of_an_approval_in_the_console(watched: tuple[Service, Trace]) -> None:
    service, trace = watched
    carl = Client(service)
    for name in ("first", "second"):
        request, call = service.asked(to=name)
        digest = carl.digest(request)
        trace.on = name == "second"
        carl.post(f"/approvals/{request.id}/approve", digest=digest)
        assert call.result(timeout=60).status == "ok"
        trace.on = False

    own = ("guard/approvals/", "host/console/")
    files = sorted(name for name in trace.files if name.startswith(own))
    assert files and len(files) <= APPROVAL, "\n".join(files)
    assert len(trace.files) <= APPROVAL_AND_CALL, "\n".join(sorted(trace.files))
    # Nothing is judged only to compare a digest.
    assert [name for name in trace.files if "explanations" in name] == []
