"""The audit log: decisions and outcomes of calls, in a chain of hashes.

Each record is one line of ASCII JSON that ends with its own hash and contains that of
the line before. A change, a gap or a new order breaks the chain; a cut at the end does
not, nor does a chain that was rewritten. A stored head shows both: store
`AuditLog.head()` where the writer of the file cannot reach it. With a key, nobody
without the key can write a line that verifies.

Appended records survive the end of the process, also by SIGKILL. Power loss takes
those that the kernel had not written yet; `head` waits for the disk, so that a stored
head never names lines that are not there.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.lowlevel
from pydantic import SecretStr

from toolcell.core import AuditError, ConfigError, InvalidInputError, ToolCall

from ..values.caller import present_caller
from ..values.calls import CallFacts, Decision, ascii_json
from .chain import (
    LINE_BYTES,
    AuditHead,
    AuditReport,
    Sealer,
    key_bytes,
    verify_audit,
)
from .file import AuditFile, HeldByOthersError
from .lock_wait import AuditBusyError
from .redaction import Redactor

RUNS = 10_000
"""Runs whose records are counted. When it is reached, the oldest run is forgotten."""

_CALLERS = 1_024
"""Callers whose members are noted. When it is reached all are forgotten."""

_CallerKey = tuple[int, str | None, str, str | None]
_FRAME_BYTES = 256
_sorted_json = json.JSONEncoder(sort_keys=True).encode
_RESERVED = frozenset({"seq", "time", "event", "prev", "hash"})
_OWN_EVENTS = frozenset({"repaired", "rotated", "pruned"})
_SMALLEST_FILE = 4_096
FIELD_BYTES = 2_048
"""Largest field of a line that is too long, in bytes. When it is reached, the size and
the hash of the field take its place."""

DELETE = "\\u007f"
"""The escape of the one character that is ASCII, unprintable, and bare in JSON."""


class AuditLog:
    """Appends records to a file; several threads and processes may share one file.

    A guard writes a record of each decision before the call may run, and one of each
    outcome. It refuses a call whose decision cannot be recorded, so no call runs that
    the log does not have. Secrets are hidden before a record is hashed.

    A process that dies while it writes loses at most its last line. The next start,
    or append of another process, removes the rest of that line and writes a record
    `repaired`. A log of several processes is given the same `rotate_bytes` and
    `keep_files` in each.

    Args:
        path: The file; created with mode 0600. Not a link.
        key: Secret of at least 16 bytes for the hashes (HMAC-SHA256). Default none:
            plain SHA-256, which anyone can compute.
        redactor: Hides secrets before anything is hashed or written; default
            `Redactor()`.
        run_records: Most records of one run in an hour; default 10,000. When it is
            reached, further appends for the run raise `AuditError` until the next hour
            of the clock, and their number is written after the 1st, 2nd, 4th, 8th ...
            of them.
        rotate_bytes: Bytes of the file, at least 4,096; default none. When it is
            reached, the file is renamed after its last record and the log goes on in a
            new file: see `toolcell.guard.audit_parts`.
        keep_files: Rotated files that stay, at least 1; default all. When it is
            reached, the oldest is deleted and a record `pruned` says so.
        clock: Returns seconds since 1970 (UTC); default `time.time`.

    Raises:
        ConfigError: The path or the key cannot be used.
        AuditError: The file cannot be written, or does not verify at its end.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        key: bytes | SecretStr | None = None,
        redactor: Redactor | None = None,
        run_records: int = 10_000,
        rotate_bytes: int | None = None,
        keep_files: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if run_records < 1:
            raise ConfigError(
                "run_records must be at least 1",
                hint="leave it out for the default, or give a higher one",
            )
        small = rotate_bytes is not None and rotate_bytes < _SMALLEST_FILE
        if small or (keep_files is not None and keep_files < 1):
            raise ConfigError(
                "rotate_bytes must be at least 4,096, and keep_files at least 1",
                hint="leave them out, and no file is rotated or deleted",
            )
        self.path = Path(path)
        """The file that is written."""

        self._key = key
        self._redactor = redactor or Redactor()
        self._run_records = run_records
        self._runs: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """By run: the hour, and the records in it."""

        self._clock = clock
        self._second = (-1, "")
        """The last second in which a record was made, and its text."""

        # The members that are the same for all calls of one tool in one run. A decision
        # takes a seventh less for it.
        self._callers: dict[_CallerKey, tuple[CallFacts, str]] = {}
        # One thread for each loop, so that records are written in their order.
        self._turn = anyio.lowlevel.RunVar[anyio.CapacityLimiter](f"audit-{id(self)}")
        self._file = AuditFile(
            Path(path),
            Sealer(key_bytes(key)),
            self._own_record,
            rotate_bytes=rotate_bytes,
            keep_files=keep_files,
        )
        try:
            with self._file:
                pass
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; further appends raise `AuditError`."""
        self._file.close()

    def append(self, event: str, /, *, run: str = "", **fields: Any) -> AuditHead:
        """Write one record and return its head. Does not wait for the disk.

        Args:
            event: The kind of the record, such as `decision` or `outcome`.
            run: The run whose `run_records` the record counts against; default none.
            fields: Further members of the record; secrets in them are hidden first.

        Raises:
            AuditError: The record cannot be written, the log was cut or changed at its
                end, or the run has reached `run_records`. Allow no call without it.
            InvalidInputError: A field has the name of one of the log's own, or the
                event is one that only the log writes.
        """
        if event in _OWN_EVENTS:
            raise InvalidInputError(
                f"{event} is an event of the log itself", hint="name yours otherwise"
            )
        if not _RESERVED.isdisjoint(fields):
            names = ", ".join(sorted(_RESERVED & fields.keys()))
            raise InvalidInputError(
                f"every record has its own {names}", hint="name the field otherwise"
            )
        labels = {"event": event, "run": run} if run else {"event": event}
        members = ascii_json(labels)[1:-1]
        if fields:
            members += f",{self._redactor.json(fields)[1:-1]}"
        return self._append(members, run)

    def decision(
        self,
        call: ToolCall,
        facts: CallFacts,
        decision: Decision | str,
        *,
        subject: str | None = None,
        wait: bool = True,
    ) -> AuditHead:
        """Record the decision about a call, before it runs.

        Args:
            call: The call.
            facts: Further facts about it.
            decision: The decision, or what `verdict` made of it.
            subject: `subject` of the call; None makes it, of a call without a hold.
            wait: True if the caller's thread may wait for other writers.

        Raises:
            AuditBusyError: Other processes write, and `wait` is False.
            AuditError: The record cannot be written, as in `append`.
        """
        if subject is None:
            subject = self.subject(call, facts)
        verdict = decision if isinstance(decision, str) else self.verdict(decision)
        return self._append(
            f'"event":"decision",{subject},{verdict},'
            f'"arguments":{self._redactor.json(call.arguments)}',
            f"{call.agent_id or ''}/{facts.run_id or ''}",
            wait=wait,
        )

    def verdict(self, decision: Decision) -> str:
        """Return the members that tell a decision in its record, as JSON text."""
        members = decision.to_json()
        detail = self._redacted(members.pop("detail", ""))
        return f'{ascii_json(members)[1:-1]},"detail":{detail}'

    def outcome(
        self,
        subject: str,
        *,
        status: str,
        duration_ms: float,
        cost: Mapping[str, int | str],
        error_kind: str | None = None,
        result_hash: str | None = None,
        wait: bool = True,
    ) -> AuditHead:
        """Record the outcome of an allowed call; it does not count against the run.

        Args:
            subject: `subject` of the call, as its decision was recorded with.
            status: The way in which it ended.
            duration_ms: Its duration in milliseconds.
            cost: The charged amounts by unit.
            error_kind: The kind of the error that ended it.
            result_hash: `digest` of its result.
            wait: True if the caller's thread may wait for other writers.

        Raises:
            AuditBusyError: Other processes write, and `wait` is False.
            AuditError: The record cannot be written, as in `append`.
        """
        return self._append(
            f'"event":"outcome",{subject},"status":{quoted(status)},'
            f'"duration_ms":{round(duration_ms, 3)},"cost":{ascii_json(cost)},'
            f'"error_kind":{"null" if error_kind is None else quoted(error_kind)},'
            f'"result_hash":{"null" if result_hash is None else quoted(result_hash)}',
            # The next decision notices that the file was removed.
            removed=False,
            wait=wait,
        )

    def digest(self, value: Any) -> str:
        """Return a hash of a value without its secrets, to record in its place."""
        shown = self._redactor(value)
        text = str(shown) if type(shown) is int else _sorted_json(shown)
        return sha256(text.encode("ascii")).hexdigest()

    def verify(
        self,
        *,
        anchors: Iterable[AuditHead] = (),
        on_progress: Callable[[int, int], object] | None = None,
    ) -> AuditReport:
        """Check this log with its own key, as `verify_audit` does; it may be in use."""
        return verify_audit(
            self.path, anchors=anchors, key=self._key, on_progress=on_progress
        )

    def head(self) -> AuditHead:
        """Wait until all records are on the disk; return the head of the log.

        Raises:
            AuditError: The log cannot be read or written to the disk.
        """
        return self._file.sync()

    def _count(self, run: str) -> int:
        """Count a record of a run; return how many it has in this hour."""
        runs, hour = self._runs, int(self._clock() // 3600)
        since, count = runs.get(run, (hour, 0))
        count = count + 1 if since == hour else 1
        runs[run] = hour, count
        if count == 1 and len(runs) > RUNS:
            runs.popitem(last=False)
        return count

    def subject(
        self, call: ToolCall, facts: CallFacts, hold_id: str | None = None
    ) -> str:
        """Return the members that name a call in both its records, as JSON text.

        Args:
            call: The call.
            facts: Further facts about it.
            hold_id: The name of its reservation; None if it has none.
        """
        parent = "null" if call.parent_id is None else self._redacted(call.parent_id)
        key = (id(facts), call.agent_id, call.name, present_caller.get())
        known = self._callers.get(key)
        caller = self._caller(key, call, facts) if known is None else known[1]
        hold = "null" if hold_id is None else quoted(hold_id)
        shown = quoted(self._redactor.text(call.id))
        return f'{caller},"hold_id":{hold},"call_id":{shown},"parent_id":{parent}'

    def _caller(self, key: _CallerKey, call: ToolCall, facts: CallFacts) -> str:
        batch = "" if facts.calls == 1 else f'"calls":{facts.calls},'
        by = present_caller.get()
        caller = "" if by is None else f'"caller":{self._redacted(by)},'
        members = (
            f'{batch}{caller}"agent_id":{_quoted(call.agent_id)},"run_id":{_quoted(facts.run_id)},'
            f'"tool_version":{quoted(facts.version)},'
            f'"definition_hash":{quoted(facts.definition_hash)},'
            f'"tool":{self._redacted(call.name)}'
        )
        if len(self._callers) >= _CALLERS:
            self._callers.clear()
        # With the facts, so that no others get their id.
        self._callers[key] = (facts, members)
        return members

    def _redacted(self, text: str) -> str:
        """Return text of a model as JSON, without the secrets in it."""
        return quoted(self._redactor.text(text))

    def _append(
        self,
        members: str,
        run: str = "",
        *,
        removed: bool = True,
        wait: bool = True,
        asked_at: float | None = None,
    ) -> AuditHead:
        record, file = self._record(members), self._file
        if wait and asked_at is None:
            asked_at = time.monotonic()
        try:
            file.hold(removed, asked_at)
        except HeldByOthersError as error:
            again = partial(self._append, members, run, removed=removed)
            raise AuditBusyError(error, again, self._turn) from None
        try:
            count = self._count(run) if run else 0
            if count <= self._run_records:
                return file.write(record)
            too_many = count - self._run_records
            if too_many.bit_count() == 1:
                omitted = {"event": "omitted", "run": run, "records": too_many}
                file.write(self._record(ascii_json(omitted)[1:-1]))
        finally:
            file.release()
        raise AuditError(
            f"the run has had its {self._run_records} records of this hour in the "
            "audit log",
            hint="go on in the next hour, or give the log a higher run_records",
        )

    def _record(self, members: str) -> str:
        """Return the members of a record with its time, as text of a JSON object."""
        members = members.replace("\x7f", DELETE)
        if len(members) > LINE_BYTES - _FRAME_BYTES:
            members = shortened(members)
        now = self._clock()
        second = int(now)
        known, text = self._second
        if known != second:
            text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            self._second = second, text
        return f'"time":"{text}.{int((now - second) * 1_000_000):06d}Z",{members}'

    def _own_record(self, members: Mapping[str, int | str]) -> str:
        return self._record(ascii_json(members)[1:-1])


def _quoted(text: str | None) -> str:
    """Return the JSON of text of the host's own, which holds no secret."""
    return "null" if text is None else quoted(text)


def shortened(members: str) -> str:
    """Return the members of a record, as JSON text, without its long fields."""
    fields = json.loads(f"{{{members}}}")
    small = {name: _small(value) for name, value in fields.items()}
    return _printable_json(small)[1:-1]


def _small(value: Any) -> Any:
    text = _printable_json(value)
    if len(text) <= FIELD_BYTES:
        return value
    digest = sha256(text.encode("ascii")).hexdigest()
    return f"[{len(text)} bytes left out, sha256 {digest}]"


def _printable_json(value: Any) -> str:
    return ascii_json(value).replace("\x7f", DELETE)
