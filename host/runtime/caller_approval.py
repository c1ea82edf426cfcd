"""Asks the person at whose client a call began, if the caller brought a way to.

The guard has one handler for all callers; what a caller brings is bound to its task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from toolcell.guard import ApprovalRequest, Approve, Reject

CallerHandler = Callable[[ApprovalRequest], Awaitable[Approve | Reject | None]]

caller_handler: ContextVar[CallerHandler | None] = ContextVar(
    "caller_handler", default=None
)
"""How the caller of the running call asks; None: it cannot."""


async def ask_caller(request: ApprovalRequest) -> Approve | Reject | None:
    """Return what the person at the caller says; None leaves the request to others."""
    handler = caller_handler.get()
    return None if handler is None else await handler(request)
