"""The requests of threads among the approvals, and their end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from toolcell.core import AuditError, InvalidInputError, StoreUnavailableError
from toolcell.guard import ApprovalRequest, Approvals

from ..stores.records import ThreadHead

_log = logging.getLogger("toolcell.flow")

QUESTION_TOOL = "interrupt"
"""The name of the tool under which a question stands among the approvals."""


def thread_of(request: ApprovalRequest) -> str:
    """Return the id of the thread of a request; empty: it is of none."""
    # The id of a run is that of its thread, and the number of the turn.
    return (request.run_id or "").rpartition(":")[0]


async def end_questions(approvals: Approvals | None, ids: Collection[str]) -> None:
    """End the requests of questions that were answered elsewhere."""

    def is_over(request: ApprovalRequest) -> bool:
        return request.call.name == QUESTION_TOOL and request.call.id in ids

    if ids:
        await _end(approvals, is_over, "the question was answered in its thread")


async def end_requests(approvals: Approvals | None, head: ThreadHead) -> None:
    """End all requests of a thread that was cancelled."""

    def is_over(request: ApprovalRequest) -> bool:
        is_own = request.call.agent_id == head.agent
        return is_own and thread_of(request) == head.thread_id

    await _end(approvals, is_over, "the thread was cancelled")


async def _end(
    approvals: Approvals | None,
    is_over: Callable[[ApprovalRequest], bool],
    reason: str,
) -> None:
    if approvals is None:
        return
    try:
        for request in filter(is_over, await approvals.pending()):
            await approvals.end(request.id, reason=reason)
    except (AuditError, InvalidInputError, StoreUnavailableError) as error:
        # Nobody goes on with an answer to it, and it expires.
        _log.warning("a request that is over stays among the approvals: %s", error)
