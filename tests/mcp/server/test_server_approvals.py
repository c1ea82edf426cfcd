"""Approval of calls over MCP by the user at the agent's client."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import CallToolRequestParams, ElicitResult, ErrorData

from toolcell.core import ToolCall
from toolcell.guard import AgentPolicy, ApprovalRequest, Approve, Redactor
from toolcell.guard.spi import Rule
from toolcell.host.mcp.caller import (
    ANSWER_KEY,
    Caller,
    ClientElicitation,
    take_answer,
)

from ...support.mcp.served_hosts import (
    CONFIG,
    MODERN,
    MODES,
    WITH_CODE,
    answering,
    client_of,
    said,
    served,
)

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("mode", MODES)]


async def test_the_clients_user_approves(tmp_path: Path, mode: Any) -> None:
    answer = answering("accept", approve=True)
    async with (
        served(tmp_path, approver="anna") as server,
        client_of(server, mode=mode, elicitation_callback=answer) as client,
    ):
        first = await client.call_tool("get_today_date", {})
        second = await client.call_tool("get_today_date", {})

    assert "today" in said(first) and "today" in said(second)
    # An approval is good for one call.
    assert len(answer.asked) == 2
    assert "tool: get_today_date" in answer.asked[0]


@pytest.mark.parametrize(
    ("action", "content"),
    [
        ("decline", {}),
        ("accept", {"approve": False, "reason": "not today"}),
        ("accept", {}),
        ("accept", {"approve": "true"}),
    ],
)
async def test_anything_but_a_yes_is_a_no(
    tmp_path: Path, mode: Any, action: str, content: dict[str, Any]
) -> None:
    answer = answering(action, **content)
    async with (
        served(tmp_path, approver="anna") as server,
        client_of(server, mode=mode, elicitation_callback=answer) as client,
    ):
        first = await client.call_tool("get_today_date", {})
        again = await client.call_tool("get_today_date", {})

    assert first.is_error and again.is_error
    assert said(first)["reason"] == "approval_denied"
    assert content.get("reason", "") in said(first)["message"]
    # A rejected call is not asked for again.
    assert len(answer.asked) == 1


@pytest.mark.promise("A19")
async def test_a_client_is_not_asked_about_what_it_would_not_show(
    tmp_path: Path, mode: Any
) -> None:
    answer = answering("accept", approve=True)
    code = "1 # -----BEGIN PRIVATE KEY-----\nprint('hidden')"
    text = WITH_CODE.replace('ask = ["', 'ask = ["run_python", "')
    async with (
        served(tmp_path, approver="anna", text=text) as server,
        client_of(server, mode=mode, elicitation_callback=answer) as client,
    ):
        waiting = await client.call_tool("run_python", {"code": code})
        [request] = await server.host.approvals.pending()

    assert (waiting.is_error, answer.asked) == (True, [])
    assert said(waiting)["approval_id"] == request.id
    assert "toolcell approvals" in said(waiting)["message"]


async def test_who_cannot_be_asked_waits_with_an_id(tmp_path: Path, mode: Any) -> None:
    async with (
        served(tmp_path, approver="anna") as server,
        client_of(server, mode=mode) as client,
    ):
        waiting = await client.call_tool("get_today_date", {})
        [request] = await server.host.approvals.pending()
        await server.host.approvals.answer(request.id, Approve(approver="anna"))
        done = await client.call_tool("get_today_date", {})

    assert waiting.is_error
    told = said(waiting)
    assert (told["code"], told["reason"]) == ("guard.denied", "approval_unavailable")
    assert told["approval_id"] == request.id
    assert told["retryable"] is True
    assert told["rule"] == "a.ask[0]"
    assert "today" in said(done)


@pytest.mark.parametrize("action", ["cancel", None])
async def test_a_question_without_an_answer_leaves_the_call_waiting(
    tmp_path: Path, mode: Any, action: str | None
) -> None:
    async def broken(context: Any, params: Any) -> Any:
        return ErrorData(code=1, message="no")

    answer = answering(action) if action else broken
    async with (
        served(tmp_path, approver="anna") as server,
        client_of(server, mode=mode, elicitation_callback=answer) as client,
    ):
        try:
            waiting = said(await client.call_tool("get_today_date", {}))
        except MCPError:
            # A client of the stateless era does not send what its user failed to say.
            assert mode == MODERN
            waiting = None
        pending = await server.host.approvals.pending()

    assert len(pending) == 1
    if waiting is not None:
        assert waiting["approval_id"] == pending[0].id


async def test_a_client_without_a_person_cannot_approve(
    tmp_path: Path, mode: Any
) -> None:
    answer = answering("accept", approve=True)
    async with (
        served(tmp_path) as server,
        client_of(server, mode=mode, elicitation_callback=answer) as client,
    ):
        refused = await client.call_tool("get_today_date", {})

    assert refused.is_error
    assert answer.asked == []


async def test_an_agents_own_name_approves_nothing(tmp_path: Path, mode: Any) -> None:
    answer = answering("accept", approve=True)
    text = f"{CONFIG}[approvals]\nwait_seconds = 0.1"
    async with (
        served(tmp_path, approver="a", text=text) as server,
        client_of(server, mode=mode, elicitation_callback=answer) as client,
    ):
        refused = await client.call_tool("get_today_date", {})

    assert refused.is_error


async def test_the_agents_own_person_is_none_of_several(
    tmp_path: Path, mode: Any
) -> None:
    answer = answering("accept", approve=True)
    async with (
        served(tmp_path, approver="anna") as server,
        client_of(server, mode=mode, elicitation_callback=answer) as client,
    ):
        two = Rule(tools=["get_today_date"], approvers=2)
        server.host.guard.replace_policies([AgentPolicy(agent_id="a", ask=[two])])
        waiting = await client.call_tool("get_today_date", {})
        [request] = await server.host.approvals.pending()
        # A client may answer what it was not asked.
        unasked = CallToolRequestParams(
            name="get_today_date",
            input_responses={
                ANSWER_KEY: ElicitResult(action="accept", content={"approve": True})
            },
            request_state=request.id,
        )
        caller = Caller(agent_id="a", run_id="r", name="test", approver="anna")
        await take_answer(server.host, caller, unasked)
        [request] = await server.host.approvals.pending()
        for name in ("berta", "carl"):
            await server.host.approvals.answer(request.id, Approve(approver=name))
        done = await client.call_tool("get_today_date", {})

    assert (waiting.is_error, answer.asked) == (True, [])
    assert request.approved_by == ()
    assert "today" in said(done)


@pytest.mark.promise("boundary-3")
@pytest.mark.parametrize(("name", "parked"), [("pay", 1), ("http.request", 0)])
async def test_a_program_is_not_made_again_to_ask_about_its_request(
    name: str, parked: int, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer client would repeat the call whose program asks, and all its effects."""
    monkeypatch.setattr(ClientElicitation, "can_ask", True)
    parks: list[str] = []
    ctx: Any = SimpleNamespace(protocol_version=MODERN)
    handler = ClientElicitation(
        ctx,
        Caller(agent_id="a", run_id="r", name="token 1", approver="anna"),
        asked=False,
        redactor=Redactor(),
        seconds=0,
        park=lambda: parks.append(name),
    )
    call = ToolCall(id="1", name=name, agent_id="a")
    facts: Any = dict.fromkeys(("run_id", "version", "definition_hash", "rule"), "")
    request = ApprovalRequest(
        id="i", call=call, tags=frozenset(), asked_at=0, expires_at=9, **facts
    )

    assert await handler(request) is None
    assert len(parks) == parked
