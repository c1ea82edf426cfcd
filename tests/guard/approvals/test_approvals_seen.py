"""What a person approves is what was shown: nothing of a call runs that was hidden."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import replace
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
    Redactor,
    ShownRequest,
)

pytestmark = [pytest.mark.anyio, pytest.mark.promise("A19")]

ASKED = Decision(verdict="ask", reason="approval_required", rule="a.ask[0]")
FACTS = CallFacts(run_id="r", version="1", definition_hash="d" * 64)
EVIL = "__import__('os').remove('/etc/x')"
BLOCK = f"-----BEGIN PRIVATE KEY-----\n{EVIL}\n-----END PRIVATE KEY-----"
HIDING: list[dict[str, Any]] = [
    {"code": f'"""\n{BLOCK}\n"""\nprint(1)'},
    {"code": f"x = 1 # -----BEGIN PRIVATE KEY-----\n{EVIL}"},
    {"code": f"token={EVIL}\nprint(1)"},
    {"url": f"https://user:{EVIL.replace('/', '')}@example.com/"},
    {"password": EVIL},
    {"form": [{"name": "api_key", "value": {"run": EVIL}}]},
    {"headers": [["Cookie", EVIL]]},
    {"options": {"secret": [1, {"run": EVIL}]}},
    {f"token={EVIL}": 1},
    {"code": "x" * 5000 + f"\ntoken={EVIL}"},
]
LONG: list[dict[str, Any]] = [
    {"code": "x = 1\n" * 2000 + EVIL},
    {"code": f"{'x' * 4096}{EVIL}"},
    {"deep": json.loads("[" * 60 + json.dumps(EVIL) + "]" * 60)},
]


def request_of(arguments: dict[str, Any]) -> ApprovalRequest:
    return ApprovalRequest(
        id="i",
        call=ToolCall(id="c", name="run", arguments=arguments, agent_id="a"),
        run_id="r",
        version="1",
        definition_hash="",
        tags=frozenset(),
        rule="a.ask[0]",
        asked_at=0,
        expires_at=3600,
    )


async def waiting(
    approvals: Approvals, arguments: dict[str, Any]
) -> tuple[ToolCall, ApprovalRequest]:
    call = ToolCall(id="c", name="run", arguments=arguments, agent_id="a")
    await approvals.ask(call, FACTS, ASKED, wait_seconds=0.01)
    [request] = await approvals.pending()
    return call, request


@pytest.mark.parametrize("arguments", HIDING)
async def test_hidden_parts_are_marked_and_cannot_be_approved_unseen(
    arguments: dict[str, Any], tmp_path: Path
) -> None:
    with AuditLog(tmp_path / "audit.jsonl") as audit:
        approvals = Approvals(
            ApprovalStore(tmp_path / "s.db"), answered_elsewhere=True, audit=audit
        )
        call, request = await waiting(approvals, arguments)
        closed = ShownRequest(request)
        for named in (None, closed.digest):
            with pytest.raises(InvalidInputError, match="hidden"):
                reply = Approve(approver="anna", seen=named)
                await approvals.answer(request.id, reply)
        unseen = await approvals.peek(call, FACTS)
        opened = ShownRequest(
            await approvals.reveal(request.id, by="anna"), opened=True
        )
        await approvals.answer(request.id, Approve(approver="anna", seen=opened.digest))
        seen = await approvals.peek(call, FACTS)

    shown = closed.to_text()
    assert EVIL not in json.dumps(closed.arguments)
    assert "[hidden: " in shown and "\nhidden: " in shown
    assert json.dumps(arguments) in opened.to_text()
    assert opened.digest in opened.to_text() and opened.digest not in shown
    assert (unseen.approved, seen.approved) == (False, True)
    log = (tmp_path / "audit.jsonl").read_text()
    records = [json.loads(line) for line in log.splitlines()]
    [told] = [record for record in records if record["event"] == "approval_opened"]
    assert (told["by"], bool(told["hidden"])) == ("anna", True)
    assert records[-1]["opened"] is True
    assert EVIL not in log and opened.digest not in log


@pytest.mark.parametrize("arguments", LONG)
async def test_nothing_is_cut_out_of_sight(arguments: dict[str, Any]) -> None:
    request = request_of(arguments)

    shown = ShownRequest(request)
    assert f"arguments: {json.dumps(arguments)}" in shown.to_text()
    assert (shown.hidden, shown.arguments) == ((), arguments)


def test_a_hidden_part_tells_its_place_its_length_and_a_digest() -> None:
    request = request_of({"code": f"print(1)\n{BLOCK}\n", "password": "short"})
    [block, short] = ShownRequest(request).hidden

    assert (block.path, block.characters) == (f"code[9:{9 + len(BLOCK)}]", len(BLOCK))
    assert block.sha256 == hashlib.sha256(BLOCK.encode()).hexdigest()[:12]
    # That of a short one could be guessed.
    assert (short.path, short.characters, short.sha256) == ("password", 5, None)


async def test_secrets_that_the_host_knows_are_hidden_parts() -> None:
    redactor = Redactor(secrets=["open sesame"])
    approvals = Approvals(answered_elsewhere=True, redactor=redactor)
    _, request = await waiting(approvals, {"text": "say open sesame"})

    assert "sesame" not in ShownRequest(request, approvals.redactor).to_text()
    with pytest.raises(InvalidInputError, match="hidden"):
        await approvals.answer(request.id, Approve(approver="anna"))


async def test_a_handler_has_to_open_what_is_hidden(
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened = [False, True]

    async def handler(request: ApprovalRequest) -> Approve:
        shown = ShownRequest(request, opened=opened.pop(0))
        return Approve(approver="anna", seen=shown.digest)

    approvals = Approvals(handler=handler)
    call = ToolCall(id="c", name="run", arguments={"code": BLOCK}, agent_id="a")
    with caplog.at_level(logging.ERROR):
        unseen = await approvals.ask(call, FACTS, ASKED)
    seen = await approvals.ask(call, FACTS, ASKED)

    assert (unseen.approved, seen.approved) == (False, True)
    assert "1 hidden part" in caplog.text and EVIL not in caplog.text


async def test_arguments_of_the_approvers_own_need_no_opening() -> None:
    approvals = Approvals(answered_elsewhere=True)
    call, request = await waiting(approvals, {"code": BLOCK})
    own: dict[str, Any] = {"code": "print(1)"}

    await approvals.answer(request.id, Approve(approver="anna", arguments=own))

    assert (await approvals.peek(call, FACTS)).call.arguments == own


async def test_an_agent_opens_nothing_of_its_own() -> None:
    approvals = Approvals(answered_elsewhere=True)
    _, request = await waiting(approvals, {"code": BLOCK})

    with pytest.raises(InvalidInputError):
        await approvals.reveal(request.id, by="A")


@pytest.mark.parametrize("own", [None, {"code": "print(2)"}])
async def test_an_approval_is_of_the_request_that_was_seen(
    own: dict[str, Any] | None,
) -> None:
    approvals = Approvals(answered_elsewhere=True)
    _, request = await waiting(approvals, {"code": "print(1)"})
    seen = ShownRequest(request, edited=own)
    changes: list[dict[str, Any]] = [
        *({"id": "i"}, {"run_id": "s"}, {"version": "2"}, {"preview": "other"}),
        *({"calls": 2}, {"tags": frozenset("x")}, {"definition_hash": "e"}),
        *({"rule": "b"}, {"approvers": 2}),
        *({"expires_at": 0.0}, {"call": request_of({"code": "print(3)"}).call}),
    ]
    if own is not None:
        changes = [
            change
            for change in changes
            if change.keys().isdisjoint(("preview", "call"))
        ]
    others = [
        ShownRequest(replace(request, **change), edited=own) for change in changes
    ]
    others.append(ShownRequest(request, edited={"code": "print(4)"}))
    for other in others:
        reply = Approve(approver="anna", arguments=own, seen=other.digest)
        with pytest.raises(InvalidInputError, match="not the request that you saw"):
            await approvals.answer(request.id, reply)

    assert [each.id for each in await approvals.pending()] == [request.id]
    reply = Approve(approver="anna", arguments=own, seen=seen.digest)
    await approvals.answer(request.id, reply)
    assert await approvals.pending() == []
