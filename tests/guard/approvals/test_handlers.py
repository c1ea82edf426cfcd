"""Handlers of approvals, however they are written, and however they end."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import anyio
import pytest

from toolcell.core import ToolCall
from toolcell.guard import ApprovalRequest, Approvals, Approve, CallFacts, Decision

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T29")]

ASKED = Decision(verdict="ask", reason="approval_required")
ANNA = Approve(approver="anna")


async def asked(handler: Any) -> tuple[str, str]:
    call = ToolCall(id="c", name="pay", agent_id="a")
    outcome = await Approvals(handler=handler).ask(call, CallFacts(run_id="r"), ASKED)
    return outcome.status, outcome.reason


def plain(_: ApprovalRequest) -> Approve:
    return ANNA


async def ordinary(_: ApprovalRequest) -> Approve:
    return ANNA


def with_more(_: int, request: ApprovalRequest) -> Approve:
    return ANNA


class Desk:
    async def __call__(self, _: ApprovalRequest) -> Approve:
        return ANNA

    def method(self, _: ApprovalRequest) -> Approve:
        return ANNA


@pytest.mark.parametrize(
    "handler",
    [
        plain,
        ordinary,
        Desk(),
        Desk().method,
        functools.partial(with_more, 1),
        functools.partial(Desk().__call__),
        lambda request: ordinary(request),
    ],
)
async def test_any_callable_may_answer(handler: Any) -> None:
    assert await asked(handler) == ("approved", "")


async def test_a_plain_function_keeps_nobody_else() -> None:
    goes_on = threading.Event()

    def handler(_: ApprovalRequest) -> Approve:
        goes_on.wait()
        return ANNA

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asked, handler)
        await anyio.wait_all_tasks_blocked()
        # On the event loop it would wait for ever.
        goes_on.set()


async def cancels_itself(_: ApprovalRequest) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await anyio.sleep_forever()


async def lets_a_cancelled_error_out(_: ApprovalRequest) -> None:
    raise asyncio.CancelledError


async def cancels_a_scope(_: ApprovalRequest) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await anyio.sleep_forever()


@pytest.mark.parametrize(
    "handler",
    [
        cancels_itself,
        lets_a_cancelled_error_out,
        cancels_a_scope,
        lambda _: True,
        lambda _: {"approver": "anna"},
        lambda _: 1 / 0,
    ],
)
async def test_none_of_these_is_an_answer(handler: Any) -> None:
    status, reason = await asked(handler)

    assert status == "unanswered"
    assert "nobody has answered" in reason
