"""A request for approval as JSON values."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolcell.guard import ApprovalRequest, Redactor


def request_facts(
    request: ApprovalRequest, redactor: Redactor, *, opened: bool = False
) -> dict[str, Any]:
    """Return a request as JSON values, what looks like a secret hidden.

    Args:
        request: The request.
        redactor: Says what looks like a secret.
        opened: Whether nothing is hidden, and the code for an approval is told.
    """
    view = request.view(redactor)
    seen: dict[str, Any] = {"arguments": view.shown}
    if opened:
        seen = {"arguments": request.call.arguments, "code": request.code}
    return {
        "id": request.id,
        "agent_id": request.call.agent_id,
        "run_id": request.run_id,
        "tool": request.call.name,
        "version": request.version,
        **seen,
        "hidden": [] if opened else [asdict(each) for each in view.hidden],
        "rule": request.rule,
        "asked_at": request.asked_at,
        "expires_at": request.expires_at,
    }
