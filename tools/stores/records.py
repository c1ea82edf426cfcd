"""Stores of records, one for each attempt at a call, each refusal, each inner call."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count, islice
from operator import add
from types import MappingProxyType
from typing import NamedTuple, Unpack

from opentelemetry import metrics
from pydantic_core import from_json, to_json

from toolcell.core import InvalidInputError, StoreUnavailableError
from toolcell.core.gauges import SECONDS

from .record import NumberedRecord, ToolExecutionRecord
from .record_filter import RecordFilter, RecordFilterOptions

_MOST = 10**12
_HALF_A_PAIR = re.compile("[\ud800-\udfff]")
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
_calls_log = logging.getLogger("toolcell.calls")
# Else Python prints warnings on standard error where nobody set logging up.
_calls_log.addHandler(logging.NullHandler())
_NOT_FOUND = "unknown"
_log = logging.getLogger(__name__)
_MAX_DIGITS = 4_000
"""Digits of a number that is surely read again from JSON."""

_MAX_HELD = 1_000
"""Records held at most. When it is reached the oldest one is dropped, and logged."""

HOUR = 3_600
"""Seconds of the spans for which usage is summed."""


class UsageHour(NamedTuple):
    """The sums of one agent's attempts that ended in one hour."""

    hour: int
    """The begin of the hour, in seconds since 1970 (UTC)."""

    agent_id: str
    """The agent; empty for calls that named none."""

    calls: int = 0
    denied: int = 0
    failed: int = 0
    """Attempts that, or whose programs, ended otherwise than `ok` and `denied`."""

    wall_ms: int = 0
    cpu_ms: int = 0
    bytes: int = 0
    tokens: int = 0
    usd: float = 0.0
    """US dollars, rounded: for plots, never for accounts."""


def usage_of(record: ToolExecutionRecord) -> UsageHour:
    """Return the share of a record in the sums of its hour."""
    ended = record.started_at.timestamp() + record.duration_ms / 1000
    used = record.usage
    return UsageHour(
        hour=int(ended // HOUR * HOUR),
        agent_id=record.agent_id or "",
        calls=1,
        denied=int(record.status == "denied"),
        failed=int(record.outcome not in ("ok", "denied")),
        wall_ms=_whole(used, "wall_ms"),
        cpu_ms=_whole(used, "cpu_ms"),
        bytes=_whole(used, "bytes"),
        tokens=_whole(used, "tokens"),
        usd=min(float(used.get("usd", 0)), _MOST),
    )


def _whole(used: Mapping[str, int | str], unit: str) -> int:
    # Tools report amounts of their own, of any size.
    return min(int(used.get(unit, 0)), _MOST)


class Records(ABC):
    """A store of records, and the queries on it."""

    @abstractmethod
    def add(self, record: ToolExecutionRecord) -> None:
        """Store a record.

        Raises:
            StoreUnavailableError: It cannot be stored.
        """

    def check(self) -> None:
        """Check that records can be stored. Raises StoreUnavailableError."""
        return

    def query(
        self, *, limit: int = 100, **filters: Unpack[RecordFilterOptions]
    ) -> list[ToolExecutionRecord]:
        """Return the newest records that fit, oldest first.

        Arguments and errors are those of `page`.
        """
        found = self.page(limit=limit, **filters)
        return [numbered.record for numbered in reversed(found)]

    def page(
        self,
        *,
        before: int | None = None,
        limit: int = 100,
        **filters: Unpack[RecordFilterOptions],
    ) -> list[NumberedRecord]:
        """Return the newest records that fit, newest first.

        Args:
            before: Only records with a lower number: that of the last one of the page
                before. None: the newest.
            limit: The maximum number of records; 0 or more, default 100.
            **filters: Only records that fit all of them. `call_id`: attempts at this
                call. `parent_id`: calls made inside this one. `agent_id`: this agent's.
                `tool_name`: of this tool. `status`: this one, or one of several: that
                of the call, or that of its program where only the program failed.
                `reason`: what the guard refused for this reason. `text`: with all of
                these words, in arguments, result or error; a word counts if it is
                whole, capitals and accents do not. `since`, `until`: started then or
                later, and earlier; aware datetimes.

        Raises:
            InvalidInputError: `limit` is negative, or a time has no time zone.
            StoreUnavailableError: The records cannot be read.
        """
        if limit < 0:
            raise InvalidInputError(
                "limit must be 0 or more", hint="leave it out for the newest 100"
            )
        return self._newest(RecordFilter.of(**filters), before, limit)

    @abstractmethod
    def _newest(
        self, wanted: RecordFilter, before: int | None, limit: int | None
    ) -> list[NumberedRecord]:
        """Return records that fit, newest first."""

    @abstractmethod
    def usage_hours(
        self, *, since: datetime, agent_id: str | None = None
    ) -> list[UsageHour]:
        """Return the sums of each hour and agent, by hour and then by agent.

        Args:
            since: Only hours that ended later; an aware datetime.
            agent_id: Only this agent's.

        Raises:
            StoreUnavailableError: The records cannot be read.
        """

    def all_records(self) -> list[ToolExecutionRecord]:
        """Return every record in the order in which they were added."""
        found = self._newest(RecordFilter(), None, None)
        return [entry.record for entry in reversed(found)]

    def get_record(
        self, call_id: str, *, agent_id: str | None = None
    ) -> ToolExecutionRecord | None:
        """Return the latest record of a call, or None.

        Args:
            call_id: The call's id.
            agent_id: The agent of the call; None takes the latest of any agent.
        """
        found = self.query(call_id=call_id, agent_id=agent_id, limit=1)
        return found[0] if found else None


class MemoryRecords(Records):
    """Records in memory: they end with the process.

    They are stored as JSON, which is small and cannot be changed, and which the garbage
    collector does not look through: it would stop one call in 250.

    Args:
        max_records: Records that are stored; default 10,000. When it is reached the
            oldest one is dropped and `dropped` counts it.
    """

    def __init__(self, *, max_records: int = 10_000) -> None:
        self._records: deque[bytes | ToolExecutionRecord] = deque(maxlen=max_records)
        self._added = 0

    @property
    def dropped(self) -> int:
        """The number of records that were dropped for want of room."""
        return self._added - len(self._records)

    def add(self, record: ToolExecutionRecord) -> None:
        self._records.append(_stored(record))
        self._added += 1

    def _newest(
        self, wanted: RecordFilter, before: int | None, limit: int | None
    ) -> list[NumberedRecord]:
        last = self._added if before is None else min(self._added, before - 1)
        older = islice(reversed(self._records), self._added - last, None)
        fitting = (
            NumberedRecord(number, record)
            for number, record in zip(count(last, -1), map(_read, older), strict=False)
            if wanted.fits(record)
        )
        return list(islice(fitting, limit))

    def usage_hours(
        self, *, since: datetime, agent_id: str | None = None
    ) -> list[UsageHour]:
        sums: dict[tuple[int, str], UsageHour] = {}
        for record in map(_read, self._records):
            share = usage_of(record)
            place = share.hour, share.agent_id
            if share.hour + HOUR <= since.timestamp():
                continue
            if agent_id is None or share.agent_id == agent_id:
                before = sums.get(place, UsageHour(*place))
                added = map(add, before[2:], share[2:])
                sums[place] = UsageHour(*place, *added)
        return [sums[place] for place in sorted(sums)]


def _stored(record: ToolExecutionRecord) -> bytes | ToolExecutionRecord:
    try:
        # A plain tuple is quicker to write than a subclass.
        stored = to_json(tuple(record), fallback=dict)
        if len(stored) > _MAX_DIGITS:
            from_json(stored)
    except ValueError:
        # Half a surrogate pair in a traceback, or a number that cannot be read again.
        return record
    return stored


def _read(stored: bytes | ToolExecutionRecord) -> ToolExecutionRecord:
    if isinstance(stored, ToolExecutionRecord):
        return stored
    record = ToolExecutionRecord._make(from_json(stored))
    started_at = datetime.fromisoformat(str(record.started_at))
    return record._replace(
        started_at=started_at, usage=MappingProxyType(dict(record.usage))
    )


class HeldRecords:
    """Holds what a store refuses until it takes it, so that no call begins meanwhile.

    A call whose record is refused has happened, and its result says what it did. The
    next one finds out by `flush`, before it does anything.

    Args:
        records: The store.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._held: deque[ToolExecutionRecord] = deque()

    def add(self, record: ToolExecutionRecord) -> None:
        """Store a record, now or later."""
        self._held.append(record)
        try:
            self.flush()
        except StoreUnavailableError as error:
            _log.error("the record of call %r has to wait: %s", record.call_id, error)
            if len(self._held) > _MAX_HELD:
                lost = self._held.popleft()
                _log.error("the record of call %r is lost", lost.call_id)

    def flush(self) -> None:
        """Store what is held. Raises StoreUnavailableError if that is not possible."""
        while self._held:
            record = self._held.popleft()
            try:
                self._records.add(record)
            except StoreUnavailableError as error:
                self._held.appendleft(record)
                raise StoreUnavailableError(
                    "the records of calls cannot be written, so none begins",
                    hint="nothing was done; the log of toolcell.tools says why",
                ) from error

    def check(self) -> None:
        """Check that records can be stored. Raises StoreUnavailableError."""
        self.flush()
        self._records.check()


def written_record(record: ToolExecutionRecord) -> str:
    """Return a record as JSON."""
    values = record._asdict()
    values["usage"] = dict(record.usage)
    values["started_at"] = record.started_at.astimezone(UTC).isoformat()
    try:
        return to_json(values).decode()
    except ValueError:
        # A traceback may have half a surrogate pair, which is no character.
        values["error_detail"] = _HALF_A_PAIR.sub(_named, values["error_detail"] or "")
        return to_json(values).decode()


def read_record(body: str) -> ToolExecutionRecord:
    """Return the record that was written."""
    values = from_json(body)
    values["started_at"] = datetime.fromisoformat(values["started_at"])
    return ToolExecutionRecord(**values)


def _named(half: re.Match[str]) -> str:
    return f"\\u{ord(half[0]):x}"


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
        if _calls_log.isEnabledFor(level):
            line = ("call of %s: %s", record.tool_name, record.status)
            _calls_log.log(level, *line, extra={"toolcell": _fields(record)})

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
