"""The audit log: what was decided and what came of it, in a chain of hashes.

Each record is one line of ASCII JSON that ends with its own hash and holds that of
the line before. A change, a gap or a new order breaks the chain; a cut at the end
does not, nor does a chain that was written anew. A kept head shows both: keep
`AuditLog.head()` where the writer of the file cannot reach it. With a key, nobody
without the key can write a line that verifies.

What was appended survives the end of the process, also by SIGKILL. Power loss takes
what the kernel had not written yet; `head` waits for the disk, so that a kept head
never speaks of lines that are not there.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from pydantic import SecretStr
from pydantic_core import to_json

from toolcell.core import AuditError, ConfigError, InvalidInputError, ToolCall

from .audit_chain import LINE_BYTES, AuditHead, key_bytes
from .audit_file import AuditFile
from .decision import Decision
from .facts import CallFacts
from .redaction import Redactor

RUNS = 10_000
"""Runs whose records are counted. When it is reached, the oldest is forgotten."""

FIELD_BYTES = 2_048
"""Largest field of a line that is too long. When it is reached, the size and the hash
of the field stand in its place."""

_FRAME_BYTES = 256
_RESERVED = frozenset({"seq", "time", "event", "prev", "hash"})


class AuditLog:
    """Appends records to a file; several threads and processes may share one file.

    A process that dies while it writes loses at most its last line. The next start,
    or append of another process, removes what is left of that line and says so in a
    record `repaired`.

    Args:
        path: The file; created with mode 0600. Not a link.
        key: Secret of at least 16 bytes that the hashes are made with (HMAC-SHA256).
            Default none: plain SHA-256, which anyone can compute.
        redactor: Hides secrets before anything is hashed or written.
        run_records: Most records of one run; default 10,000. When it is reached,
            further appends for the run raise `AuditError`, and how many did so is
            written after the 1st, 2nd, 4th, 8th ... of them.
        clock: Seconds since the epoch.

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
        clock: Callable[[], float] = time.time,
    ) -> None:
        if run_records < 1:
            raise ConfigError("run_records must be at least 1")
        self._redactor = redactor or Redactor()
        self._run_records = run_records
        self._runs: OrderedDict[str, int] = OrderedDict()
        self._clock = clock
        self._file = AuditFile(Path(path), key_bytes(key), self._repaired)
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
        """Write one record and return its place. Does not wait for the disk.

        Args:
            event: What happened, such as `decision` or `outcome`.
            run: The run on whose account the record is written; default none.
            fields: What is recorded; secrets in it are hidden first.

        Raises:
            AuditError: It cannot be written, the log was cut or changed at its end,
                or the run has had its records. Allow nothing that is not recorded.
            InvalidInputError: A field has the name of one of the log's own.
        """
        if not _RESERVED.isdisjoint(fields):
            names = ", ".join(sorted(_RESERVED & fields.keys()))
            raise InvalidInputError(f"every record has its own {names}")
        return self._append(event, run, {"run": run} if run else {}, fields)

    def decision(
        self,
        call: ToolCall,
        facts: CallFacts,
        decision: Decision,
        *,
        hold_id: str | None = None,
    ) -> AuditHead:
        """Record what was decided about a call, before it runs.

        Raises:
            AuditError: As `append`.
        """
        labels = {**_labels(call, facts), "hold_id": hold_id, **decision.to_json()}
        detail = labels.pop("detail", "")
        heard = {**_heard(call), "arguments": call.arguments, "detail": detail}
        return self._append("decision", _run(call, facts), labels, heard)

    def outcome(
        self,
        call: ToolCall,
        facts: CallFacts,
        *,
        status: str,
        duration_ms: float,
        cost: Mapping[str, int | str],
        hold_id: str | None = None,
        error_kind: str | None = None,
        result_hash: str | None = None,
    ) -> AuditHead:
        """Record what came of a call that was allowed; it does not count for the run.

        Args:
            call: The call.
            facts: What is known of it.
            status: How it ended.
            duration_ms: How long it took, in milliseconds.
            cost: What it was charged, by unit.
            hold_id: The reservation that was settled.
            error_kind: The kind of the error that ended it.
            result_hash: `digest` of its result.

        Raises:
            AuditError: As `append`.
        """
        labels = {
            **_labels(call, facts),
            "hold_id": hold_id,
            "status": status,
            "duration_ms": round(duration_ms, 3),
            "cost": dict(cost),
            "error_kind": error_kind,
            "result_hash": result_hash,
        }
        return self._append("outcome", "", labels, _heard(call))

    def digest(self, value: Any) -> str:
        """Return a hash of a value without its secrets, to record in its place."""
        return _sha256(json.dumps(self._redactor(value), sort_keys=True))

    def head(self) -> AuditHead:
        """Wait until all records are on the disk; return the place of the last.

        Raises:
            AuditError: As `append`.
        """
        with self._file as file:
            file.sync()
            return file.head

    def _spend(self, run: str) -> int:
        """Count a record of a run; return how many it has had too many."""
        if not run:
            return 0
        count = self._runs.get(run, 0) + 1
        self._runs[run] = count
        if len(self._runs) > RUNS:
            self._runs.popitem(last=False)
        return max(0, count - self._run_records)

    def _append(
        self, event: str, run: str, labels: Mapping[str, Any], heard: Mapping[str, Any]
    ) -> AuditHead:
        record = self._record(event, labels, heard)
        with self._file as file:
            too_many = self._spend(run)
            if not too_many:
                return file.write(record)
            if too_many.bit_count() == 1:
                omitted = {"run": run, "records": too_many}
                file.write(self._record("omitted", omitted, {}))
        raise AuditError(
            f"the run has had its {self._run_records} records in the audit log",
            hint="start a new run, or give the log a higher run_records",
        )

    def _record(
        self, event: str, labels: Mapping[str, Any], heard: Mapping[str, Any]
    ) -> str:
        """Return the text of a record.

        Args:
            event: What happened.
            labels: Words of the host's own, where no secret can be.
            heard: What came from a model, a tool or a person.
        """
        known = _ascii_json({"time": self._time(), "event": event, **labels})
        text = self._redactor.json(heard)
        if len(known) + len(text) > LINE_BYTES - _FRAME_BYTES:
            known = _ascii_json({"time": self._time(), "event": event})
            both = {**labels, **heard}
            small = {name: self._small(value) for name, value in both.items()}
            text = self._redactor.json(small)
        return f"{known[:-1]},{text[1:]}" if len(text) > 2 else known

    def _small(self, value: Any) -> Any:
        text = self._redactor.json(value)
        if len(text) <= FIELD_BYTES:
            return value
        return f"[{len(text)} bytes left out, sha256 {_sha256(text)}]"

    def _repaired(self, lost: bytes) -> str:
        digest = hashlib.sha256(lost).hexdigest()
        return self._record("repaired", {"bytes": len(lost), "sha256": digest}, {})

    def _time(self) -> str:
        seconds, rest = divmod(self._clock(), 1)
        return f"{_second(int(seconds))}.{int(rest * 1_000_000):06d}Z"


def _run(call: ToolCall, facts: CallFacts) -> str:
    return f"{call.agent_id or ''}/{facts.run_id or ''}"


def _labels(call: ToolCall, facts: CallFacts) -> dict[str, Any]:
    return {
        "agent_id": call.agent_id,
        "run_id": facts.run_id,
        "tool_version": facts.version,
        "definition_hash": facts.definition_hash,
    }


def _heard(call: ToolCall) -> dict[str, Any]:
    return {"call_id": call.id, "parent_id": call.parent_id, "tool": call.name}


def _ascii_json(value: Mapping[str, Any]) -> str:
    try:
        text = to_json(value).decode()
    except ValueError:  # half a surrogate pair
        text = ""
    return text if text.isascii() and text else json.dumps(value, separators=(",", ":"))


@functools.lru_cache(maxsize=16)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()
