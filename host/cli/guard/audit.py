"""`toolcell audit`: verifies the log of decisions, and shows its last records."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolcell.core import AuditError, ConfigError
from toolcell.core.text.printable import escaped

from ...terminal.exit_codes import EXIT_WITHOUT_KEY
from ...terminal.output import print_json, print_notice, print_table
from ..base.options import DEFAULT_CONFIG, AsJson, ConfigPath
from ..base.record_filters import Agent, Lines, Reason, Since, Text, Tool, Until

if TYPE_CHECKING:
    from pydantic import SecretStr

_WITHOUT_KEY = (
    "checked without a key: whoever can write the log can have rewritten all of it"
)

_NAMES_OF_SUBJECTS = (
    "id",
    "person",
    "approval_id",
    "grant_id",
    "ended",
    "request",
    "link",
)
"""Fields that name what a record is about: a token, a person, a request, a grant."""

audit = typer.Typer(
    help="Verify the audit log, and show its last records.", no_args_is_help=True
)

LogFile = Annotated[
    Path | None,
    typer.Option(readable=False, help="The log; default that of the configuration."),
]


@audit.command()
def verify(
    file: LogFile = None,
    anchor: Annotated[
        list[str] | None, typer.Option(help="A head that you noted, as 12:9f86...")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="REFERENCE",
            help="The log's key, as env:NAME; default that of the configuration.",
        ),
    ] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Look for edits, gaps and, with --anchor, truncation.

    Exits with 1 if there are any, with 5 if there are none but a --file was checked
    without a key.
    """
    from toolcell.guard import AuditHead, verify_audit

    path, secret = _log_to_verify(file, key, config)
    anchors = [AuditHead.parse(text) for text in anchor or []]
    try:
        report = verify_audit(path, anchors=anchors, key=secret)
    except AuditError as error:
        raise ConfigError(error.message, hint=error.hint) from None
    if as_json:
        problems = [asdict(problem) for problem in report.problems]
        facts = {"ok": report.ok, "records": report.records, "problems": problems}
        keyed = secret is not None
        print_json({**facts, "keyed": keyed, "head": str(report.head)})
    else:
        print(escaped(str(report)))
        print(f"head {report.head}")
    if secret is None:
        print_notice(_WITHOUT_KEY, as_json=as_json)
    verified = EXIT_WITHOUT_KEY if file is not None and secret is None else 0
    raise typer.Exit(verified if report.ok else 1)


@audit.command()
def tail(
    file: LogFile = None,
    lines: Lines = 20,
    since: Since = None,
    until: Until = None,
    agent: Agent = None,
    tool: Tool = None,
    status: Annotated[
        str | None, typer.Option(help="Only those that ended so; failed: not well.")
    ] = None,
    reason: Reason = None,
    text: Text = None,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Show the last records that fit. It verifies none."""
    from ...operator.filters import fits_audit, read_filters

    given = {"agent": agent, "tool": tool, "since": since, "until": until}
    given |= {"status": status, "reason": reason, "text": text}
    asked = read_filters(given, datetime.now(UTC))
    asked.check()
    wanted = dict(asked.wanted)
    start = _as_recorded(wanted.pop("since", None)) or ""
    end = _as_recorded(wanted.pop("until", None))

    def is_asked(record: dict[str, Any]) -> bool:
        time = str(record.get("time", ""))
        in_time = start <= time and (end is None or time < end)
        return in_time and fits_audit(wanted, record)

    path = file if file is not None else _log(config)[0]
    try:
        records = _last_records(path, lines, is_asked)
    except AuditError as error:
        raise ConfigError(error.message, hint=error.hint) from None
    if as_json:
        for record in records:
            print_json(record)
        return
    columns = ("seq", "time", "event", "agent_id", "tool")
    rows = [
        [*(record.get(name) or "" for name in columns), _outcome(record)]
        for record in records
    ]
    print_table((*columns, "outcome"), rows)


def _as_recorded(time: datetime | None) -> str | None:
    """Return a time as the log has it, up to its zone."""
    return None if time is None else time.replace(tzinfo=None).isoformat()


def _last_records(
    path: Path, count: int, is_asked: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    """Return the last such records of a log, whichever of its files they are in."""
    from toolcell.guard import audit_parts

    found: list[dict[str, Any]] = []
    with audit_parts(path) as parts:
        for part in reversed(parts):
            if len(found) < count:
                asked = filter(is_asked, map(_record, part.file))
                found[:0] = deque(asked, maxlen=count - len(found))
    return found


def _record(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    return record if isinstance(record, dict) else {"event": "unreadable"}


def _outcome(record: dict[str, Any]) -> str:
    parts = [record.get(name) for name in ("verdict", "reason", "status", "error_kind")]
    if parts[1] == "allowed":
        parts[1] = None  # The verdict says so.
    by = record.get("approver") or record.get("by") or record.get("caller")
    if record.get("event") == "approval_answered":
        parts = ["approved" if record.get("approved") else "rejected"]
    parts[:0] = [record.get(name) for name in _NAMES_OF_SUBJECTS]
    parts.append(f"by {by}" if by else None)
    if version := record.get("version"):
        parts.append(f"version {version}")
    parts.append(record.get("problem"))
    return " ".join(str(part) for part in parts if part)


def _log_to_verify(
    file: Path | None, key: str | None, config: Path
) -> tuple[Path, SecretStr | None]:
    """Return the log, and the key that was named or that the configuration names."""
    from toolcell.core.secrets import read_secret

    named = None if key is None else read_secret(key, os.environ)
    if file is None:
        path, configured = _log(config)
        return path, named or configured
    if named is None and (config != DEFAULT_CONFIG or config.exists()):
        named = _key(config)
    return file, named


def _log(config: Path) -> tuple[Path, SecretStr | None]:
    """Return the log of a configuration, and its key."""
    from ...config.host_config import HostConfig

    settings = HostConfig.from_file(config).audit
    if settings.path is None:
        raise ConfigError("there is no audit log", hint="name its path in [audit]")
    return settings.path, _key(config)


def _key(config: Path) -> SecretStr | None:
    """Return the key of a configuration's log."""
    from toolcell.core.secrets import read_secret

    from ...config.host_config import HostConfig

    key = HostConfig.from_file(config).audit.key
    return None if key is None else read_secret(key, os.environ)
