"""The idempotency keys of a call."""

from __future__ import annotations

import logging

from toolcell.core import StoreUnavailableError, ToolCall, ToolResult

from ..definition.tool import Tool
from ..definition.validation import Arguments
from .idempotency import CallBody, Idempotency

_log = logging.getLogger(__name__)
CallKey = tuple[str, CallBody]
"""A key, and the request that is made under it."""


def call_keys(
    call: ToolCall, tool: Tool, arguments: Arguments, run_id: str | None
) -> list[CallKey]:
    """Return the keys under which a call runs at most once.

    One is the agent's call id. A tool that is declared idempotent has another one: its
    arguments, within a run of the agent.
    """
    name = call.agent_id or ""
    agent, version = f"{len(name)}:{name}", f"{tool.name}/{tool.version}"
    keys = [(f"call/{agent}/{call.id}", CallBody(version, call.arguments, name))]
    if tool.idempotent:
        # With defaults: whether they were sent or left out, the call is the same.
        body = CallBody(version, arguments.json, name)
        run = length_prefixed(run_id)
        keys.append((f"arguments/{agent}/{run}/{body.text}", body))
    return keys


def end_key(
    store: Idempotency,
    key: str,
    result: ToolResult | None,
    in_doubt: bool,
    repeatable: bool,
) -> None:
    """End a key by the result of its run; None: the run was stopped."""
    try:
        if result is not None and result.ok:
            store.finish(key, result)
        elif in_doubt and not repeatable:
            store.doubt(key)
        else:
            store.forget(key)
    except StoreUnavailableError as error:
        # The key stays as claimed, and a later call finds its outcome unknown.
        _log.warning("an idempotency key was not ended: %s", error)


def length_prefixed(name: str | None) -> str:
    """Return a name that cannot run into what follows it in a key."""
    return f"{len(name or '')}:{name or ''}"
