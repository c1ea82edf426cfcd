"""Asks for approval at the client that made a call, where the client can ask its user.

The guard has one approval handler for all calls, but each MCP client is asked over its
own connection. A server therefore sets `caller_handler` in the task of a call, and
`ask_caller`, the guard's handler, looks it up there. A call whose client cannot ask has
no `caller_handler`; its request waits for `toolcell approvals`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from toolcell.guard import ApprovalRequest, Approve, Reject

CallerHandler = Callable[[ApprovalRequest], Awaitable[Approve | Reject | None]]

caller_handler: ContextVar[CallerHandler | None] = ContextVar(
    "caller_handler", default=None
)
"""Asks the caller of the running call; None: the caller cannot be asked."""


async def ask_caller(request: ApprovalRequest) -> Approve | Reject | None:
    """Return the answer of the caller's user; None: somebody else may answer."""
    handler = caller_handler.get()
    return None if handler is None else await handler(request)
