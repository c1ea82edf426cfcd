"""`toolcell audit`: what was decided, and whether the record was touched."""

from __future__ import annotations

import json
import os
from collections import deque
from pathlib import Path
from typing import Annotated, Any

import typer

from toolcell.core import AuditError, ConfigError

from .options import DEFAULT_CONFIG, AsJson, ConfigPath
from .show import print_table

audit = typer.Typer(help="The audit log.", no_args_is_help=True)

File = Annotated[
    Path | None, typer.Option(help="The log; default that of the configuration.")
]


@audit.command()
def verify(
    file: File = None,
    anchor: Annotated[
        list[str] | None, typer.Option(help="A head that was kept, as 12:9f86...")
    ] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Look for edits, gaps and, against kept heads, cuts; exit code 1 if there are."""
    from toolcell.guard import AuditHead, verify_audit

    path, key = (file, None) if file is not None else _log(config)
    anchors = [AuditHead.parse(text) for text in anchor or []]
    try:
        report = verify_audit(path, anchors=anchors, key=key)
    except AuditError as error:
        raise ConfigError(error.message) from None
    if as_json:
        problems = [
            {"kind": each.kind, "line": each.line, "detail": each.detail}
            for each in report.problems
        ]
        facts = {"ok": report.ok, "records": report.records, "problems": problems}
        print(json.dumps({**facts, "head": str(report.head)}))
    else:
        print(report)
        print(f"head {report.head}")
    raise typer.Exit(0 if report.ok else 1)


@audit.command()
def tail(
    file: File = None,
    lines: Annotated[int, typer.Option(min=1, max=100_000, help="How many.")] = 20,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Show the last records. It does not verify them."""
    path = file if file is not None else _log(config)[0]
    try:
        with path.open(encoding="ascii", errors="replace") as log:
            records = [_record(line) for line in deque(log, maxlen=lines)]
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if as_json:
        for record in records:
            print(json.dumps(record))
        return
    columns = ("seq", "time", "event", "agent_id", "tool")
    rows = [
        [*(record.get(name) or "" for name in columns), _outcome(record)]
        for record in records
    ]
    print_table((*columns, "outcome"), rows)


def _record(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    return record if isinstance(record, dict) else {"event": "unreadable"}


def _outcome(record: dict[str, Any]) -> str:
    words = (record.get(name) for name in ("verdict", "reason", "status", "error_kind"))
    return " ".join(str(word) for word in words if word)


def _log(config: Path) -> tuple[Path, Any]:
    """Return the log of a configuration, and its key."""
    from .config import HostConfig
    from .secret import read_secret

    settings = HostConfig.from_file(config).audit
    if settings.path is None:
        raise ConfigError("there is no audit log", hint="name its path in [audit]")
    key = None if settings.key is None else read_secret(settings.key, os.environ)
    return settings.path, key
