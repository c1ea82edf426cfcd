"""Finds what became of a call that people approved."""

from __future__ import annotations

from toolcell.guard.spi import ApprovalRecord
from toolcell.tools import Records
from toolcell.tools.spi import NumberedRecord

_WAITED = ("approval_required", "approval_unavailable")
"""Reasons with which attempts end that only waited for an answer."""

_LATEST = 10


def record_of(records: Records, approval: ApprovalRecord) -> NumberedRecord | None:
    """Return the attempt at a call that followed its approval; None: there is none yet.

    Args:
        records: The records of the host.
        approval: The request that people approved.

    Raises:
        StoreUnavailableError: The records cannot be read.
    """
    call = approval.request.call
    found = records.page(
        call_id=call.id, agent_id=call.agent_id, tool_name=call.name, limit=_LATEST
    )
    for each in found:
        attempt = each.record
        ended = attempt.started_at.timestamp() + attempt.duration_ms / 1000
        # Another run of the agent may have had a call with this id.
        if ended < approval.request.asked_at or attempt.reason in _WAITED:
            continue
        # Without the approval only a refusal ends it; else its caller stopped waiting.
        if approval.status == "used" or attempt.status == "denied":
            return each
    return None
