"""Counts and logs records: calls, refusals, times."""

from __future__ import annotations

import logging
from datetime import datetime

from opentelemetry import metrics

from toolcell.core.gauges import SECONDS

from .record import NumberedRecord, ToolExecutionRecord
from .record_filter import RecordFilter
from .records import Records, UsageHour

_meter = metrics.get_meter("toolcell.tools")
_calls = _meter.create_counter(
    "toolcell.calls", unit="{call}", description="Calls that ended, by status."
)
_denials = _meter.create_counter(
    "toolcell.denials", unit="{call}", description="Calls that the guard refused."
)
_seconds = _meter.create_histogram(
    "toolcell.call.duration",
    unit="s",
    description="Time of attempts at calls.",
    explicit_bucket_boundaries_advisory=SECONDS,
)
_log = logging.getLogger("toolcell.calls")
# Else Python prints warnings on standard error where nobody set logging up.
_log.addHandler(logging.NullHandler())
_NOT_FOUND = "unknown"


class ObservedRecords(Records):
    """Records that are counted in OpenTelemetry metrics, and logged.

    Metrics are silent without an SDK. The log line of an attempt has its ids, never
    its arguments or its result: extra fields are in `record.toolcell`.

    Args:
        records: The store of the records.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    def add(self, record: ToolExecutionRecord) -> None:
        self._records.add(record)
        _count(record)
        level = logging.INFO if record.error_kind is None else logging.WARNING
        if _log.isEnabledFor(level):
            line = ("call of %s: %s", record.tool_name, record.status)
            _log.log(level, *line, extra={"toolcell": _fields(record)})

    def check(self) -> None:
        self._records.check()

    def _newest(
        self, wanted: RecordFilter, before: int | None, limit: int | None
    ) -> list[NumberedRecord]:
        return self._records._newest(wanted, before, limit)

    def usage_hours(
        self, *, since: datetime, agent_id: str | None = None
    ) -> list[UsageHour]:
        return self._records.usage_hours(since=since, agent_id=agent_id)


def _count(record: ToolExecutionRecord) -> None:
    # Unregistered names come from the model: they would make series without end.
    known = record.tool_version is not None
    labels = {
        "gen_ai.tool.name": record.tool_name if known else _NOT_FOUND,
        "gen_ai.agent.id": (record.agent_id or "") if known else _NOT_FOUND,
    }
    ended = {**labels, "toolcell.status": record.status}
    _seconds.record(record.duration_ms / 1000, ended)
    if record.final:
        _calls.add(1, ended)
    if record.status == "denied":
        _denials.add(1, {**labels, "toolcell.reason": record.reason or "unknown"})


def _fields(record: ToolExecutionRecord) -> dict[str, object]:
    fields = {
        "call_id": record.call_id,
        "parent_id": record.parent_id,
        "agent_id": record.agent_id,
        "tool": record.tool_name,
        "version": record.tool_version,
        "status": record.status,
        "verdict": record.verdict,
        "reason": record.reason,
        "error_kind": record.error_kind,
        "attempt": record.attempt,
        "duration_ms": round(record.duration_ms, 3),
        "backend": record.backend,
    }
    return {name: value for name, value in fields.items() if value is not None}
