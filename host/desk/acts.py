"""Acts of operators on a host that runs; each is recorded before it is done."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio.to_thread

from toolcell.core import InvalidInputError
from toolcell.guard import AuditHead, AuditLog
from toolcell.tools import CodeSessions

from .heads import HeadFile, KeptHead
from .live_calls import LiveCall, LiveCalls


async def cancel_call(
    calls: LiveCalls, call: LiveCall, *, by: str, audit: AuditLog | None
) -> None:
    """Cancel a call that runs, and wait for its end.

    Args:
        calls: The calls of the host.
        call: The call.
        by: The name of the person.
        audit: The log; None: nothing is recorded.

    Raises:
        AuditError: The act cannot be recorded; the call runs on.
    """
    named = {"agent_id": call.agent_id, "call_id": call.id, "tool": call.tool}
    await _record(audit, "call_cancelled", by=by, **named)
    await calls.cancel(call, by=by)


async def close_session(
    sessions: CodeSessions,
    agent_id: str | None,
    key: str,
    *,
    by: str,
    audit: AuditLog | None,
) -> None:
    """Close a session of code; its variables and files are lost.

    Raises:
        InvalidInputError: It is not open.
        AuditError: The act cannot be recorded; the session stays.
    """
    _check_open(sessions, agent_id, key)
    await _record(audit, "session_closed", by=by, agent_id=agent_id, session=key)
    await sessions.aclose(agent_id, key)


async def interrupt_session(
    sessions: CodeSessions,
    agent_id: str | None,
    key: str,
    *,
    by: str,
    audit: AuditLog | None,
) -> None:
    """Interrupt the run of a session of code, as Ctrl-C does.

    Raises:
        InvalidInputError: It is not open.
        AuditError: The act cannot be recorded; the run goes on.
    """
    _check_open(sessions, agent_id, key)
    await _record(audit, "session_interrupted", by=by, agent_id=agent_id, session=key)
    await sessions.interrupt(agent_id, key)


async def keep_head(audit: AuditLog, heads: HeadFile, *, by: str) -> KeptHead:
    """Keep the present head of the audit log, to check the log against later.

    Raises:
        AuditError: The log cannot be read or written.
        StoreUnavailableError: The head cannot be kept.
    """
    await _record(audit, "head_kept", by=by)
    head: AuditHead = await anyio.to_thread.run_sync(audit.head)
    return await anyio.to_thread.run_sync(partial(heads.keep, head, by=by))


def _check_open(sessions: CodeSessions, agent_id: str | None, key: str) -> None:
    if not any((each.agent_id, each.key) == (agent_id, key) for each in sessions.all()):
        raise InvalidInputError(
            "this session is not open", hint="it was closed, or has ended by itself"
        )


async def _record(audit: AuditLog | None, event: str, **fields: Any) -> None:
    if audit is not None:
        await anyio.to_thread.run_sync(partial(audit.append, event, **fields))
