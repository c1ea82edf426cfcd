"""Calls, limits and records as clients see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import anyio

from toolcell.core.event_loop import rest
from toolcell.core.models import construct_unchecked
from toolcell.guard import Redactor
from toolcell.guard.spi import LimitState
from toolcell.sandbox.spi import CellUsage
from toolcell.tools.spi import CodeSession, NumberedRecord

from ..operator.live_calls import LiveCall
from . import bodies


def live_view(call: LiveCall, redactor: Redactor) -> bodies.LiveCall:
    """Return a call that runs as it is shown; secrets are hidden."""
    return bodies.LiveCall.model_validate(
        {
            "number": call.number,
            "call_id": call.id,
            "agent_id": call.agent_id,
            "tool": call.tool,
            "parent_id": call.parent_id,
            "run_id": call.run_id,
            "session": call.session,
            "arguments": call.arguments(redactor),
            "state": call.state,
            "status": call.status,
            "started_at": call.since,
            "deadline": call.deadline,
            "can_be_ended": call.stop is not None,
            "output_bytes": call.output.size,
        }
    )


def written_live(calls: Sequence[LiveCall], redactor: Redactor) -> bytes:
    """Return calls that run as the JSON text of a `LiveCallList`."""
    texts: list[bytes] = []
    for call in calls:
        texts.append(live_view(call, redactor).model_dump_json().encode())
        rest()
    return b'{"calls":[%b]}' % b",".join(texts)


def session_view(session: CodeSession, usage: CellUsage | None) -> bodies.SessionInfo:
    """Return a session of code as it is shown."""
    now = anyio.current_time()
    used = None if usage is None else bodies.SessionUsage(**usage.model_dump())
    return bodies.SessionInfo(
        number=session.number,
        agent_id=session.agent_id,
        session=session.key,
        opened_at=session.opened_at,
        idle_seconds=0.0 if session.users else now - session.used,
        calls=session.users,
        programs=session.programs,
        usage=used,
    )


def budgets_view(agent_id: str, limits: Iterable[LimitState]) -> bodies.Budgets:
    """Return the limits of an agent as they are shown."""
    found = list(limits)
    return bodies.Budgets(
        agent_id=agent_id,
        left={each.label: each.left for each in found},
        limits=[
            bodies.Limit(
                name=each.label,
                unit=each.unit,
                window=each.window,
                maximum=each.maximum,
                used=each.used,
                held=each.held,
                left=each.left,
                resets_at=each.resets_at,
                enforced=each.enforced,
            )
            for each in found
        ],
    )


def record_view(numbered: NumberedRecord) -> bodies.Record:
    """Return a record as it is shown.

    Nothing is checked again: each of the values in arguments and results would be.
    """
    record = numbered.record
    fields = {
        "number": numbered.number,
        "call_id": record.call_id,
        "agent_id": record.agent_id,
        "parent_id": record.parent_id,
        "tool": record.tool_name,
        "version": record.tool_version,
        "arguments": dict(record.arguments),
        "verdict": record.verdict,
        "status": record.status,
        "outcome": record.outcome,
        "reason": record.reason,
        "rule": record.rule,
        "error_kind": record.error_kind,
        "result": record.result,
        "usage": dict(record.usage),
        "started_at": record.started_at.timestamp(),
        "duration_ms": record.duration_ms,
        "attempt": record.attempt,
        "final": record.final,
        "replayed": record.replayed,
    }
    return construct_unchecked(bodies.Record, fields, set(fields))
