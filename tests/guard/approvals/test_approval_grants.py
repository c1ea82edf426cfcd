"""Grants: leave for more calls, never wider than a person said, never for shells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolcell.core import InvalidInputError, ToolCall
from toolcell.guard import (
    ApprovalRequest,
    Approvals,
    ApprovalStore,
    Approve,
    AuditLog,
    CallFacts,
    Decision,
    Grant,
    verify_audit,
)

pytestmark = pytest.mark.anyio

ASKED = Decision(verdict="ask", reason="approval_required", rule="a.ask[0]")
FACTS = CallFacts(run_id="r", version="1", definition_hash="d" * 64)


def write(path: Any = "/w/a", text: str = "x", **changes: Any) -> ToolCall:
    values = {"id": "c", "name": "write_file", "agent_id": "a"}
    arguments = {"path": path, "text": text}
    return ToolCall(**{**values, "arguments": arguments, **changes})


async def granted(
    grant: Grant | None,
    call: ToolCall,
    facts: CallFacts = FACTS,
    *,
    edited: dict[str, Any] | None = None,
    clock: Any = lambda: 1_700_000_000.0,
    audit: AuditLog | None = None,
) -> Approvals:
    """Return approvals in which a person has said yes to a call, with a grant."""

    async def handler(_: ApprovalRequest) -> Approve:
        return Approve(approver="anna", grant=grant, arguments=edited)

    approvals = Approvals(
        ApprovalStore(), handler=handler, clock=clock, audit=audit, max_pending=1
    )
    answer = await approvals.ask(call, facts, ASKED)
    assert answer.approved
    assert await approvals.use(answer)
    return approvals


async def stands(approvals: Approvals, call: ToolCall, **facts: Any) -> bool:
    """Tell whether a call needs no new question, and can use its grant twice."""
    known = {"run_id": "r9", "version": "1", "definition_hash": "d" * 64}
    answer = await approvals.peek(call, CallFacts(**{**known, **facts}))
    if not answer.approved:
        return False
    assert (answer.approver, answer.approval_id) == ("anna", None)
    assert [await approvals.use(answer), await approvals.use(answer)] == [True, True]
    return True


@pytest.mark.promise("RA-07")
async def test_this_exact_call_for_an_hour() -> None:
    approvals = await granted(Grant(), write())

    assert await stands(approvals, write(id="other"))
    assert not await stands(approvals, write(text="y"))
    assert not await stands(approvals, write(arguments={"path": "/w/a"}))
    assert not await stands(
        approvals, write(arguments={"path": "/w/a", "text": "x", "mode": 1})
    )


@pytest.mark.promise("RA-07")
async def test_this_tool_with_this_path_for_an_hour() -> None:
    approvals = await granted(Grant(arguments=("path",)), write())

    assert await stands(approvals, write(text="anything"))
    assert await stands(approvals, write(arguments={"path": "/w/a", "append": True}))
    for path in ("/w/b", "/w/a/", "/w/../w/a", "/w/a\0", ["/w/a"], None, "/W/a"):
        assert not await stands(approvals, write(path))
    assert not await stands(approvals, write(arguments={"text": "x"}))
    # A command that slips in beside the path makes it another kind of call.
    assert not await stands(approvals, write(arguments={"path": "/w/a", "cmd": "id"}))


async def test_a_grant_tells_apart_what_python_does_not() -> None:
    approvals = await granted(Grant(arguments=("path",)), write(1))

    assert await stands(approvals, write(1))
    for other in (True, 1.0, "1"):
        assert not await stands(approvals, write(other))


async def test_a_tool_that_runs_nothing_can_be_granted_as_a_whole() -> None:
    approvals = await granted(Grant(arguments=()), write())

    assert await stands(approvals, write("/anywhere", "y"))
    assert await stands(approvals, write(arguments={}))


@pytest.mark.parametrize(
    "changes",
    [
        {"agent_id": "b"},
        {"name": "write_files"},
        {"version": "2"},
        {"definition_hash": "e" * 64},
        {"tags": frozenset({"shell"})},
    ],
    ids=str,
)
async def test_a_grant_is_of_one_agent_and_one_definition(
    changes: dict[str, Any],
) -> None:
    approvals = await granted(Grant(arguments=()), write())
    facts = {k: v for k, v in changes.items() if k not in ("agent_id", "name")}
    call = write(**{k: v for k, v in changes.items() if k in ("agent_id", "name")})

    assert await stands(approvals, write())
    assert not await stands(approvals, call, **facts)


@pytest.mark.promise("RA-07")
@pytest.mark.parametrize(
    ("name", "arguments", "tags"),
    [
        ("run_shell", {"line": "ls"}, ()),
        ("bash", {"x": 1}, ()),
        ("runPython", {"x": 1}, ()),
        ("execute", {"x": 1}, ()),
        ("helper", {"command": "ls"}, ()),
        ("helper", {"Code": "1"}, ()),
        ("helper", {"argv": ["ls"]}, ()),
        ("helper", {"sql": "select 1"}, ()),
        ("helper", {"x": 1}, ("interpreter",)),
        ("helper", {"x": 1}, ("Shell",)),
    ],
)
async def test_a_shell_is_granted_by_the_exact_call_only(
    name: str, arguments: dict[str, Any], tags: tuple[str, ...]
) -> None:
    call = ToolCall(id="c", name=name, arguments=arguments, agent_id="a")
    facts = CallFacts(tags=frozenset(tags))
    first = next(iter(arguments))

    async def handler(_: ApprovalRequest) -> None:
        return None

    approvals = Approvals(ApprovalStore(), handler=handler)
    await approvals.ask(call, facts, ASKED)
    [request] = await approvals.pending()
    assert request.shell_like
    for names in ((), (first,)):
        with pytest.raises(InvalidInputError, match="grant the exact call"):
            await approvals.answer(
                request.id, Approve(approver="anna", grant=Grant(arguments=names))
            )
    assert await approvals.grants() == []
    await approvals.answer(request.id, Approve(approver="anna", grant=Grant()))

    answer = await approvals.peek(call, CallFacts(run_id="r2", tags=frozenset(tags)))
    assert answer.approved
    other = ToolCall(id="c", name=name, arguments={first: "rm"}, agent_id="a")
    assert not (await approvals.peek(other, facts)).approved


async def test_a_grant_ends(tmp_path: Path) -> None:
    now = [1_700_000_000.0]
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as log:
        approvals = await granted(
            Grant(seconds=60), write(), clock=lambda: now[0], audit=log
        )
        answer = await approvals.peek(write(), FACTS)
        now[0] += 59
        assert await stands(approvals, write())
        now[0] += 1
        assert not await stands(approvals, write())
        assert await approvals.use(answer) is False
        assert await approvals.grants() == []

        now[0] = 1_700_000_000
        [grant] = await approvals.grants()
        answer = await approvals.peek(write(), FACTS)
        assert await approvals.revoke(grant.id, by="bob")
        assert not await approvals.revoke(grant.id, by="bob")
        assert not await stands(approvals, write())
        assert await approvals.use(answer) is False
    assert verify_audit(path).ok
    text = path.read_text()
    assert text.count('"grant_revoked"') == 1
    assert '"granted":{"path":"/w/a","text":"x"}' in text


async def test_a_grant_with_other_arguments_is_of_those() -> None:
    approvals = await granted(Grant(), write(), edited={"path": "/w/b", "text": "x"})

    assert await stands(approvals, write("/w/b"))
    assert not await stands(approvals, write())


async def test_a_grant_that_cannot_be_is_refused() -> None:
    for seconds in (0, -1, 86_401, float("nan"), float("inf")):
        with pytest.raises(InvalidInputError, match="86400 seconds"):
            Grant(seconds=seconds)
    approvals = Approvals(ApprovalStore(), handler=_nobody)
    await approvals.ask(write(), FACTS, ASKED)
    [request] = await approvals.pending()
    with pytest.raises(InvalidInputError, match="no argument root"):
        await approvals.answer(
            request.id, Approve(approver="anna", grant=Grant(arguments=("root",)))
        )


async def _nobody(_: ApprovalRequest) -> None:
    return None
