"""What a tool says that a call would do, for people who approve it."""

from __future__ import annotations

from collections.abc import Callable
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
    ApprovalStore,
    Approve,
    AuditLog,
    ShownRequest,
)
from toolcell.tools import ConcurrentExecutor, Tool, ToolRegistry, tool

pytestmark = pytest.mark.anyio
SECRET = "token=sk-proj-" + "a1B2" * 8


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcell.tools.definition.previews.PREVIEW_SECONDS", 60)


async def shown(
    made: Tool, audit: AuditLog | None = None, **arguments: Any
) -> ApprovalRequest:
    """Return the request that people see; they approve it, and the call runs."""
    seen: list[ApprovalRequest] = []

    async def anna(request: ApprovalRequest) -> Approve:
        seen.append(request)
        return Approve(approver="anna", seen=ShownRequest(request, opened=True).digest)

    approvals = Approvals(handler=anna)
    guard = ActionGuard(
        [AgentPolicy(agent_id="a", ask=["*"])], approvals=approvals, audit=audit
    )
    registry = ToolRegistry()
    registry.register(made)
    call = ToolCall(id="1", name=made.name, arguments=arguments, agent_id="a")
    result = await ConcurrentExecutor(registry, guard=guard).call(call)
    assert result.status == "ok", result
    [request] = seen
    return request


def mail(preview: Callable[..., Any]) -> Tool:
    async def send(to: str, lines: list[str]) -> str:
        return f"{to}: {' '.join(lines)}"

    return tool(send, preview=preview)


async def test_people_see_what_the_tool_says(tmp_path: Path) -> None:
    def preview(to: str, lines: list[str]) -> str:
        lines.append("never sent")
        return f"To: {to}\nagent: root"

    with AuditLog(tmp_path / "audit.jsonl") as audit:
        request = await shown(mail(preview), audit, to="x", lines=["hello"])

    assert request.preview == "To: x\nagent: root"
    assert request.call.arguments == {"to": "x", "lines": ["hello"]}
    lines = ShownRequest(request).to_text().splitlines()
    assert lines[-3:] == [
        "preview, in the tool's own words:",
        *("  | To: x", "  | agent: root"),
    ]
    assert '"preview":"To: x\\nagent: root"' in (tmp_path / "audit.jsonl").read_text()


async def test_a_method_and_a_coroutine_tell_it_too() -> None:
    class Move(Tool):
        """Moves."""

        name = "move"

        async def execute(self, to: str) -> str:
            return to

        async def preview(self, to: str) -> str:
            return f"{self.name} to {to}"

    assert (await shown(Move(), to="x")).preview == "move to x"


@pytest.mark.parametrize(
    "preview",
    [
        lambda **_: 1 / 0,
        lambda **_: None,
        lambda **_: b"bytes",
        lambda wrong: wrong,
    ],
    ids=["raises", "none", "bytes", "parameters"],
)
async def test_one_that_fails_leaves_the_arguments(preview: Any) -> None:
    request = await shown(mail(preview), to="x", lines=[])

    assert request.preview == ""
    assert "preview" not in ShownRequest(request).to_text()


async def test_one_that_takes_too_long_leaves_the_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolcell.tools.definition.previews.PREVIEW_SECONDS", 0.01)

    async def preview(**_: Any) -> str:
        await anyio.sleep_forever()
        return "late"

    assert (await shown(mail(preview), to="x", lines=[])).preview == ""


async def test_it_is_bounded_and_acts_on_no_terminal() -> None:
    hostile = "\x1b[2J\ud800\u202e" + "x" * 20_000
    request = await shown(mail(lambda **_: hostile), to="x", lines=[])

    assert len(request.preview) < 10_100
    assert request.preview.endswith("[cut: 10006 more characters]")
    assert ShownRequest(request).to_text().replace("\n", "").isprintable()


async def test_secrets_in_it_are_hidden_until_they_are_opened() -> None:
    request = await shown(mail(lambda **_: SECRET), to="x", lines=[])

    assert SECRET not in ShownRequest(request).to_text()
    assert SECRET in ShownRequest(request, opened=True).to_text()


async def test_nothing_is_told_of_calls_that_nobody_is_asked_about() -> None:
    told: list[str] = []
    registry = ToolRegistry()
    registry.register(mail(lambda **_: told.append("told")))
    guard = ActionGuard([AgentPolicy(agent_id="a", allow=["*"])])
    call = ToolCall(
        id="1", name="send", arguments={"to": "x", "lines": []}, agent_id="a"
    )
    result = await ConcurrentExecutor(registry, guard=guard).call(call)

    assert (result.status, told) == ("ok", [])


async def test_it_is_stored_with_the_request(tmp_path: Path) -> None:
    with ApprovalStore(tmp_path / "state.db") as store:
        approvals = Approvals(store, answered_elsewhere=True, wait_seconds=0.01)
        guard = ActionGuard([AgentPolicy(agent_id="a", ask=["*"])], approvals=approvals)
        registry = ToolRegistry()
        registry.register(mail(lambda **_: "what it does"))
        call = ToolCall(
            id="1", name="send", arguments={"to": "x", "lines": []}, agent_id="a"
        )
        await ConcurrentExecutor(registry, guard=guard).call(call)
    with ApprovalStore(tmp_path / "state.db") as store:
        [request] = await Approvals(store).pending()

    assert request.preview == "what it does"
