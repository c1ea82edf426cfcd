"""The end of a thread at a request, wherever it runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import anyio

from toolcell.core import (
    CheckpointNotFoundError,
    ErrorInfo,
    FlowError,
    ThreadBusyError,
)
from toolcell.guard import Approvals

from ..execution.answers import CANCEL
from ..execution.thread_requests import end_requests
from ..stores.base import Lease
from ..stores.checkpointer import Checkpointer
from ..stores.records import AnswerRecord

_BETWEEN_CLAIMS = 0.1


async def cancel_thread(
    checkpointer: Checkpointer,
    approvals: Approvals | None,
    thread_id: str,
    *,
    by: str,
    wait_seconds: float,
    clock: Callable[[], datetime],
) -> None:
    """End a thread; one that has an owner is ended by its owner, which is asked to.

    Args:
        checkpointer: The store of the thread.
        approvals: Those that its requests are among; None: there are none.
        thread_id: The id of the thread; one that has ended stays as it is.
        by: The name of whoever ends it.
        wait_seconds: Seconds to wait for an owner that lives.
        clock: Returns the time with its zone.

    Raises:
        CheckpointNotFoundError: There is no such thread.
        ThreadBusyError: Its owner has not let go of it in time; it still will.
        StoreUnavailableError: The store does not answer.
    """
    request = AnswerRecord(id=CANCEL, denied="denied", by=by, how="cancel", at=clock())
    give_up_at = anyio.current_time() + wait_seconds
    while True:
        try:
            lease = await checkpointer.claim(thread_id)
        except ThreadBusyError:
            # The commit of a step clears the request with the answers of the step.
            await checkpointer.put_once(thread_id, CANCEL, request.to_bytes())
            if anyio.current_time() >= give_up_at:
                raise
            await anyio.sleep(_BETWEEN_CLAIMS)
        else:
            break
    try:
        await set_cancelled(checkpointer, approvals, lease, by=by, at=clock())
    finally:
        with anyio.CancelScope(shield=True):
            await checkpointer.release(lease)


async def set_cancelled(
    checkpointer: Checkpointer,
    approvals: Approvals | None,
    lease: Lease,
    *,
    by: str,
    at: datetime,
) -> None:
    """Write that a thread was cancelled, as its owner, unless it has ended."""
    stored = await checkpointer.read(lease.thread_id)
    if stored is None:
        raise CheckpointNotFoundError(
            "the thread was deleted",
            hint="flow.threads() lists those that are there",
            details={"thread": lease.thread_id},
        )
    head = stored.head
    if head.status == "done":
        return
    if head.status == "cancelled":
        # Who cancelled it may have died before this.
        await end_requests(approvals, head)
        return
    error = FlowError(
        f"{by} cancelled the thread",
        hint="fork it to go on from one of its checkpoints",
        details={"thread": lease.thread_id, "by": by},
    )
    changed = {
        "status": "cancelled",
        "error": head.error or ErrorInfo.of(error),
        "updated": at,
    }
    await checkpointer.append(lease, [], head.model_copy(update=changed))
    await end_requests(approvals, head)
