"""Actions of operators on a host that runs; each is recorded before it is done.

To stop something is always safe, so it is done even if the audit log cannot be written:
the host's own log then has the act, and its caller learns that it is not recorded.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Literal

import anyio.to_thread

from toolcell.core import AuditError, InvalidInputError
from toolcell.guard import AuditHead, AuditLog
from toolcell.tools.spi import CodeSession, CodeSessions

from .audit_anchors import HeadFile, KeptHead
from .live_calls import LiveCall, LiveCalls, check_stoppable

_log = logging.getLogger("toolcell.host")


async def cancel_call(
    calls: LiveCalls, call: LiveCall, *, by: str, audit: AuditLog | None
) -> bool:
    """Cancel a call that runs, and wait for its end.

    Args:
        calls: The calls of the host.
        call: The call.
        by: The name of the person.
        audit: The log; None: nothing is recorded.

    Returns:
        False if the act could not be recorded.

    Raises:
        InvalidInputError: It cannot be ended by itself.
    """
    check_stoppable(call)
    named = {"agent_id": call.agent_id, "call_id": call.id, "tool": call.tool}
    recorded = await _record_stop(audit, "call_cancelled", by=by, **named)
    await calls.cancel(call, by=by)
    return recorded


async def stop_session(
    sessions: CodeSessions,
    session: CodeSession,
    way: Literal["close", "interrupt"],
    *,
    by: str,
    audit: AuditLog | None,
) -> bool:
    """Close a session of code, or interrupt its run as Ctrl-C does.

    A session that is closed loses its variables and files.

    Returns:
        False if the act could not be recorded.

    Raises:
        InvalidInputError: It is not open.
    """
    agent_id, key = session.agent_id, session.key
    if not any((each.agent_id, each.key) == (agent_id, key) for each in sessions.all()):
        raise InvalidInputError(
            "this session is not open", hint="it was closed, or has ended by itself"
        )
    event, stop = (
        ("session_closed", sessions.aclose)
        if way == "close"
        else ("session_interrupted", sessions.interrupt)
    )
    named = {"agent_id": agent_id, "session": key}
    recorded = await _record_stop(audit, event, by=by, **named)
    await stop(agent_id, key)
    return recorded


async def keep_head(audit: AuditLog, heads: HeadFile, *, by: str) -> KeptHead:
    """Keep the present head of the audit log, to check the log against later.

    Raises:
        AuditError: The log cannot be read or written.
        StoreUnavailableError: The head cannot be kept.
    """
    await anyio.to_thread.run_sync(partial(audit.append, "head_kept", by=by))
    head: AuditHead = await anyio.to_thread.run_sync(audit.head)
    return await anyio.to_thread.run_sync(partial(heads.keep, head, by=by))


async def _record_stop(audit: AuditLog | None, event: str, **facts: Any) -> bool:
    """Record that something is stopped; return False if that is not possible."""
    if audit is None:
        return True
    try:
        await anyio.to_thread.run_sync(partial(audit.append, event, **facts))
    except AuditError as error:
        _log.error("done, but not in the audit log: %s %s: %s", event, facts, error)
        return False
    return True
