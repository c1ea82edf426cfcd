"""Says what became of a call that was approved on the command line."""

from __future__ import annotations

from time import monotonic, time
from typing import Any

import anyio
import anyio.to_thread

from toolcell.guard import Approvals
from toolcell.guard.spi import ApprovalRecord
from toolcell.tools import Records

from ...operator.approved_calls import record_of

_LOOK_SECONDS = 0.1
_WAIT_SECONDS = 2.0
"""A host that waits sees an answer within one second."""


async def call_after(
    approvals: Approvals, records: Records, request_id: str
) -> dict[str, Any] | None:
    """Return what became of an approved call, as JSON values.

    Its end is waited for, for up to two seconds, unless nobody waits for the call.

    Args:
        approvals: The approvals.
        records: The records of calls.
        request_id: The request.

    Returns:
        `state`: `ended`, with `status` and, if it was refused, `reason` and `rule`;
        `running`; `waiting`, if it has not begun; `gone`, if nobody waits for it. None:
        it takes the approval of further people.

    Raises:
        StoreUnavailableError: The approvals or the records cannot be read.
    """
    until = monotonic() + _WAIT_SECONDS
    while True:
        approval = await approvals.find(request_id)
        if approval is None or approval.status == "pending":
            return None
        found = await anyio.to_thread.run_sync(record_of, records, approval)
        if found is not None:
            ended = found.record
            facts = {
                "status": ended.outcome,
                "reason": ended.reason,
                "rule": ended.rule,
            }
            return {"state": "ended", **{k: v for k, v in facts.items() if v}}
        state = _state(approval)
        if state == "gone" or monotonic() >= until:
            return {"state": state}
        await anyio.sleep(_LOOK_SECONDS)


def _state(approval: ApprovalRecord) -> str:
    if approval.status == "used":
        return "running"
    return "waiting" if approval.request.is_waited_for(time()) else "gone"


def call_line(call: dict[str, Any]) -> str:
    """Return what `call_after` returned as a line for people."""
    match call:
        case {"state": "ended", "status": "denied", "reason": reason}:
            by = f" by {call['rule']}" if "rule" in call else ""
            return f"the call was refused all the same: {reason}{by}"
        case {"state": "ended", "status": status}:
            return f"the call has ended: {status}"
        case {"state": "running"}:
            return "the call has begun"
        case {"state": "gone"}:
            return "nobody waits for the call any more: made again, it runs"
        case _:
            return "the call has not begun yet: `toolcell records` will have its end"
