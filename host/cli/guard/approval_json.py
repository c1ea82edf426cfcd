"""A request for approval as JSON values."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolcell.guard import ApprovalRequest, Redactor


def request_facts(
    request: ApprovalRequest, redactor: Redactor, *, opened: bool = False
) -> dict[str, Any]:
    """Return a request as JSON values; likely secrets are hidden.

    Args:
        request: The request.
        redactor: Finds likely secrets.
        opened: True shows hidden parts, and the code that an approval of them needs.
            Default false.
    """
    view = request.view(redactor)
    seen: dict[str, Any] = {
        "arguments": view.shown,
        "preview": redactor(request.preview),
    }
    if opened:
        seen = {
            "arguments": request.call.arguments,
            "preview": request.preview,
            "code": request.code,
        }
    return {
        "id": request.id,
        "agent_id": request.call.agent_id,
        "run_id": request.run_id,
        "tool": request.call.name,
        "version": request.version,
        **seen,
        "hidden": [] if opened else [asdict(each) for each in view.hidden],
        "rule": request.rule,
        "approvers": request.approvers,
        "approved_by": request.approved_by,
        "asked_at": request.asked_at,
        "expires_at": request.expires_at,
    }
