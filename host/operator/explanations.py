"""Explanations of decisions: of calls of before, and of a call now."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import anyio.to_thread

from toolcell.core import InvalidInputError, ToolCall, ToolcellError
from toolcell.guard import ActionGuard, CallFacts, Decision, Redactor
from toolcell.guard.spi import AuditEntry, audit_of_call
from toolcell.sandbox.spi import NETWORK_ACTS, facts_of_url
from toolcell.tools import Records, Tool, ToolExecutionRecord, ToolRegistry

_CLOCKS_APART = timedelta(seconds=5)
_NO_BODY = hashlib.sha256().hexdigest()


async def explain(
    guard: ActionGuard,
    registry: ToolRegistry,
    call: ToolCall,
    *,
    run_id: str | None,
    seconds: float,
) -> Decision:
    """Return what would be decided about a call now; nothing is called or counted.

    Args:
        guard: The guard.
        registry: The tools.
        call: The call, with its agent. What a program sends to the network may have a
            `url` in place of its parts.
        run_id: The run that it would be made in; None: no run.
        seconds: Seconds of a call to a tool that names no timeout.

    Raises:
        InvalidInputError: The URL cannot be judged exactly.
        ToolValidationError: The arguments do not fit the tool.
    """
    if call.name in NETWORK_ACTS:
        call, act_facts = _with_parts(call), CallFacts(run_id=run_id, via="code")
        decision = await guard.decide(call, act_facts)
        if decision.verdict == "ask" and call.arguments.get("content_length") == 0:
            # Before people are asked the body is read, and their answers name it.
            arguments = {"body_sha256": _NO_BODY, **call.arguments}
            call = call.model_copy(update={"arguments": arguments})
            decision = await guard.decide(call, act_facts)
        return decision
    tool = registry.snapshot().get(call.name)
    if tool is None:
        return await guard.decide(call, CallFacts(run_id=run_id))
    exact = {"name": tool.name, "arguments": tool.validate(call.arguments).json}
    facts = _facts(tool, run_id, seconds)
    return await guard.decide(call.model_copy(update=exact), facts)


def _with_parts(call: ToolCall) -> ToolCall:
    """Return an act of a program with the parts of its URL."""
    if "url" not in call.arguments:
        return call
    try:
        parts = facts_of_url(call.name, call.arguments)
    except ValueError as error:
        raise InvalidInputError(
            f"{error}: a program could not send it either",
            hint='write {"method": "POST", "url": "https://host/path?query"}',
        ) from None
    return call.model_copy(update={"arguments": parts})


def _facts(tool: Tool, run_id: str | None, seconds: float) -> CallFacts:
    wall_ms = math.ceil((tool.timeout or seconds) * 1000)
    # Only the executor knows how much CPU a cell may use; unnamed, it is the maximum.
    measured = (
        {"wall_ms": wall_ms} if tool.sandboxed else {"wall_ms": wall_ms, "cpu_ms": 0}
    )
    return CallFacts(
        version=tool.version,
        tags=frozenset(tool.tags),
        callers=frozenset(tool.callers),
        definition_hash=tool.definition_hash,
        cost={**measured, **tool.cost},
        requires_approval=tool.requires_approval,
        run_id=run_id,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """All that is known about the decision on a call of before."""

    record: ToolExecutionRecord
    logged: Sequence[AuditEntry]
    """The records of the audit log about it, oldest first."""

    now: Decision | None
    """The decision that the same call would get now, with the arguments as they were
    recorded: where secrets are hidden in them, it is about the text in their place."""

    problem: str = ""
    """The reason why there is no decision now."""


async def why(
    record: ToolExecutionRecord,
    *,
    guard: ActionGuard,
    registry: ToolRegistry,
    audit: Path | None,
    redactor: Redactor,
    seconds: float,
) -> Why:
    """Return why a call was decided as it was, and how it would be decided now.

    Args:
        record: The record of the call.
        guard: The guard.
        registry: The tools.
        audit: The audit log; None: there is none.
        redactor: The one with which the log was written.
        seconds: Seconds of a call to a tool that names no timeout.

    Raises:
        AuditError: The log cannot be read.
    """
    logged: Sequence[AuditEntry] = ()
    if audit is not None:
        ended = record.started_at + timedelta(milliseconds=record.duration_ms)
        search = partial(
            audit_of_call,
            audit,
            redactor.text(record.call_id),
            since=record.started_at - _CLOCKS_APART,
            until=ended + _CLOCKS_APART,
        )
        logged = [
            each
            for each in await anyio.to_thread.run_sync(search)
            if each.record.get("agent_id") == record.agent_id
        ]
    run = next(
        (each.record["run_id"] for each in logged if "run_id" in each.record), None
    )
    try:
        call = ToolCall(
            id=record.call_id,
            name=record.tool_name,
            arguments=dict(record.arguments),
            agent_id=record.agent_id,
            parent_id=record.parent_id,
        )
        now = await explain(guard, registry, call, run_id=run, seconds=seconds)
    except ToolcellError as error:
        return Why(record=record, logged=logged, now=None, problem=str(error))
    return Why(record=record, logged=logged, now=now)


@dataclass(frozen=True, slots=True)
class CallTree:
    """A call, and those that its program made."""

    record: ToolExecutionRecord
    inner: Sequence[CallTree]


def call_tree(
    records: Records, record: ToolExecutionRecord, *, depth: int = 8, limit: int = 500
) -> CallTree:
    """Return the calls inside a call, each with those inside it.

    Args:
        records: The records; they are read where this runs.
        record: The outermost call.
        depth: Most calls inside each other; default 8.
        limit: Most calls inside one; default 500. When one is reached the rest is left
            out.

    Raises:
        StoreUnavailableError: The records cannot be read.
    """
    if depth < 1:
        return CallTree(record, ())
    found = records.query(
        parent_id=record.call_id, agent_id=record.agent_id, limit=limit
    )
    # A call is no part of itself, whatever its ids say.
    inner = [each for each in found if each.call_id != record.call_id]
    return CallTree(
        record,
        [call_tree(records, each, depth=depth - 1, limit=limit) for each in inner],
    )
