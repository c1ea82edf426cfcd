"""OpenTelemetry spans of calls; silent and nearly free without an SDK.

Names follow the GenAI conventions. Arguments and results stay out of spans: they
may hold secrets, and the records have them redacted.
"""

from __future__ import annotations

from collections.abc import Awaitable

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from toolcell.core import ToolCall, ToolResult, ToolStatus

_PROVIDER = "_TRACER_PROVIDER"
"""The library's name for what makes spans; if it changes, spans only take longer. Its
own function to ask looks into the environment each time."""

_tracer = trace.get_tracer("toolcell.tools")


def start_span(call: ToolCall) -> Span:
    """Start the span of a call."""
    if getattr(trace, _PROVIDER, trace) is None:
        # Nobody has asked for spans, which took a twentieth of each call.
        return trace.INVALID_SPAN
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.call.id": call.id,
        "gen_ai.tool.type": "function",
    }
    if call.agent_id is not None:
        attributes["gen_ai.agent.id"] = call.agent_id
    return _tracer.start_span(
        f"execute_tool {call.name}", kind=SpanKind.INTERNAL, attributes=attributes
    )


async def in_span(span: Span, work: Awaitable[ToolResult]) -> ToolResult:
    """Await the result of a call inside its span, and write its outcome on it."""
    with trace.use_span(span, end_on_exit=True):
        result = await work
        kind = None if result.error is None else result.error.kind
        _write_outcome(span, result.status, kind)
        return result


def end_span(span: Span, status: ToolStatus, error_kind: str | None) -> None:
    """Write the outcome of a call on its span, and end it."""
    _write_outcome(span, status, error_kind)
    span.end()


def _write_outcome(span: Span, status: ToolStatus, error_kind: str | None) -> None:
    span.set_attribute("toolcell.status", status)
    if error_kind is not None:
        span.set_attribute("error.type", error_kind)
        span.set_status(Status(StatusCode.ERROR))
