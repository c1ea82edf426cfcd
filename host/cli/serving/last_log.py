"""The audit log that a host wrote to its end: acts that a restore must not undo."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, JsonValue

from toolcell.core import AuditError, ConfigError
from toolcell.guard import audit_parts

from ...operator.people import Role

_SUBJECTS = {
    "token_revoked": "id",
    "person_removed": "person",
    "person_changed": "role",
    "passkey_removed": "person",
    "approval_answered": "approved",
    "approval_ended": "approval_id",
    "approval_used": "approval_id",
    "approvals_withdrawn": "person",
    "grant_revoked": "grant_id",
}
"""The events that are read, each with a field without which it says nothing."""

BEFORE_A_BACKUP = timedelta(minutes=1)
"""Time before a backup whose acts are done again, too. Hosts record an act before they
change the file, or while its transaction is open, so that a backup may have the state
of before. An act that is done twice only takes away."""


class ActionRecord(BaseModel):
    """The record of an action. Fields that its event has not are at their defaults."""

    event: str
    """One of `_SUBJECTS`."""

    time: datetime
    id: str = ""
    """The token."""

    person: str = ""
    role: Role = "viewer"
    agents: tuple[str, ...] | None = None
    passkey: str | None = None
    """Its id as text. None: the record is of a version that did not write it."""

    approval_id: str | None = None
    grant_id: str | None = None
    approved: bool = False
    approver: str = ""
    reason: str = ""
    arguments: JsonValue = None
    """A text, if they were too long for the log."""

    kept_agents: tuple[str, ...] = ()


class _Record(NamedTuple):
    """The part of a record of an audit log that is read here."""

    seq: int
    time: datetime
    act: ActionRecord | None


def last_acts(log: Path, made_at: datetime) -> list[ActionRecord]:
    """Return the acts that a log says were done, the oldest first.

    Tokens that were revoked are of the whole log, the others of the time since
    `BEFORE_A_BACKUP`.

    Args:
        log: The log, with its rotated files beside it. What is older than these acts
            may be missing.
        made_at: The time of the backup.

    Raises:
        ConfigError: It cannot be read, one of its lines but the last cannot, or
            records are missing.
    """
    found: list[ActionRecord] = []
    last, since = 0, made_at - BEFORE_A_BACKUP
    for where, record in _records(log):
        is_begin = not last and record.time < since
        if record.seq != last + 1 and not is_begin:
            raise _missing(f"{where} is record {record.seq}, not {last + 1}", log)
        last = record.seq
        act = record.act
        if act and (act.event == "token_revoked" or record.time >= since):
            found.append(act)
    if not last:
        raise _missing(f"{log} has no record", log)
    return found


def _records(log: Path) -> Iterator[tuple[str, _Record]]:
    try:
        with audit_parts(log) as parts:
            for part in parts:
                for number, line in enumerate(part.file, 1):
                    where = f"{part.path}: line {number}"
                    if line.endswith(b"\n"):  # A crash leaves another.
                        yield where, _record(line, where)
    except (OSError, AuditError) as error:
        raise ConfigError(
            f"{log} cannot be read: {error}", hint="name the log of the host"
        ) from None


def _record(line: bytes, where: str) -> _Record:
    try:
        record = json.loads(line)
        time = datetime.fromisoformat(record["time"]).astimezone(UTC)
        return _Record(int(record["seq"]), time, _act(record))
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ConfigError(
            f"{where} is no record, so that it may be of something that was revoked",
            hint="see `toolcell audit verify --file`; restore without --audit, and"
            " revoke by hand",
        ) from None


def _act(record: dict[str, Any]) -> ActionRecord | None:
    subject = _SUBJECTS.get(record["event"])
    if subject is None:
        return None
    if subject not in record:
        raise KeyError(subject)
    return ActionRecord.model_validate(record)


def _missing(why: str, log: Path) -> ConfigError:
    return ConfigError(
        f"{why}: those before it may be of something that was revoked",
        hint=f"move the rotated files along with it, as {log.name}.NUMBER; or restore"
        " without --audit, and revoke by hand",
    )
