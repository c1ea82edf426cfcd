"""Calls of clients, as they are written down: a record and a span of each."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode

from toolcell.core import GuardDeniedError, ToolCall, ToolcellError, ToolStatus
from toolcell.guard import Permit, Redactor
from toolcell.sandbox import ExecutionResult
from toolcell.tools import CallCancelledError, ToolExecutionRecord

from ..desk.live_calls import LiveCall
from ..sandbox_http.errors import APIError

NO_COST: Mapping[str, int] = {"cpu_ms": 0, "wall_ms": 0, "bytes": 0}
"""The amounts that a call without a program is charged."""

_VERSION = "1"
_tracer = trace.get_tracer("toolcell.host")


class AdmittedCall:
    """A call that the guard admitted, until it is settled.

    Args:
        permit: The guard's permit.
        cpus: CPUs that it may use at a time; None: it costs nothing that is counted.
        live: The call among those that live. Whoever can end it sets `stop`.
    """

    def __init__(self, permit: Permit, cpus: float | None, live: LiveCall) -> None:
        self._permit = permit
        self._cpus = cpus
        self.live = live
        self._began = time.perf_counter()
        self.usage: Mapping[str, int] | None = None
        """The amounts that were charged; None: it is not settled."""

        self.result: ExecutionResult | None = None
        """The end of the program, if there was one and it ended."""

    @property
    def call(self) -> ToolCall:
        """The call, which a person may have changed."""
        return self._permit.call

    async def settle(
        self,
        result: ExecutionResult | None = None,
        *,
        status: ToolStatus = "ok",
        error_kind: str | None = None,
    ) -> None:
        """Charge what a program used, and record how it ended; only once.

        A program whose end is not known is charged the time since its admission, on
        all its CPUs.
        """
        if self.usage is not None:
            return
        self.usage, self.result = self._cost(result), result
        if self.live.cancelled_as is not None:
            status, error_kind = "cancelled", self.live.cancelled_as.kind
        ended = None if result is None else result.status
        await self._permit.settle(
            self.usage, status=status, error_kind=error_kind, result=ended
        )

    def _cost(self, result: ExecutionResult | None) -> Mapping[str, int]:
        if result is not None:
            usage = result.usage
            return {
                "cpu_ms": math.ceil(usage.cpu_ms),
                "wall_ms": math.ceil(usage.wall_ms),
                "bytes": usage.network_bytes,
            }
        if self._cpus is None:
            return NO_COST
        wall = math.ceil((time.perf_counter() - self._began) * 1000)
        return {**NO_COST, "wall_ms": wall, "cpu_ms": math.ceil(wall * self._cpus)}


class NotedCall:
    """One call on its way into the records.

    Args:
        call: The call, as its client made it.
    """

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.admitted: AdmittedCall | None = None
        self.status: ToolStatus = "ok"
        self.error_kind: str | None = None
        self._reason: str | None = None
        self._started_at = datetime.now(UTC)
        self._began = time.perf_counter()
        self._span = _start_span(call)

    def take(self, error: BaseException) -> None:
        """Note what ended the call."""
        if self.error_kind is not None:
            return
        self.status, self.error_kind = "error", type(error).__name__
        if isinstance(error, APIError):
            self.error_kind = error.code
        elif isinstance(error, ToolcellError):
            self.error_kind = error.kind
        if isinstance(error, CallCancelledError) or not isinstance(error, Exception):
            self.status = "cancelled"
        if isinstance(error, GuardDeniedError) and self.admitted is None:
            self.status = "denied"
            self._reason = str(error.details.get("reason") or error.kind)

    def close_span(self) -> None:
        """End the span of the call."""
        self._span.set_attribute("toolcell.status", self.status)
        if self.error_kind is not None:
            self._span.set_attribute("error.type", self.error_kind)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()

    def record(self, redactor: Redactor) -> ToolExecutionRecord:
        """Return the record of the call; of variables it has the names alone."""
        admitted = self.admitted
        call = self.call if admitted is None else admitted.call
        ended = None if admitted is None else admitted.result
        result = None
        if ended is not None:
            result = {"status": ended.status, "exit_code": ended.exit_code}
        shown: Any = redactor(without_values(call).arguments)
        verdict: Literal["allowed", "denied", "not_asked"] = "allowed"
        if admitted is None:
            verdict = "denied" if self.status == "denied" else "not_asked"
        return ToolExecutionRecord(
            call_id=call.id,
            tool_name=call.name,
            agent_id=call.agent_id,
            parent_id=None,
            tool_version=_VERSION,
            arguments=shown,
            verdict=verdict,
            status=self.status,
            started_at=self._started_at,
            duration_ms=(time.perf_counter() - self._began) * 1000,
            result=redactor(result),
            error_kind=self.error_kind,
            reason=self._reason,
            usage={} if admitted is None else dict(admitted.usage or {}),
            backend=None if ended is None else ended.backend,
        )


def without_values(call: ToolCall) -> ToolCall:
    """Return a call as it is shown: of variables it has the names alone."""
    arguments: dict[str, Any] = dict(call.arguments)
    if isinstance(variables := arguments.get("env"), dict):
        arguments["env"] = sorted(variables)
    return call.validated(call.name, arguments)


def _start_span(call: ToolCall) -> Span:
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.call.id": call.id,
        "gen_ai.agent.id": call.agent_id or "",
    }
    return _tracer.start_span(f"execute_tool {call.name}", attributes=attributes)
