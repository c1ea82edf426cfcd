"""`toolcell records`: the calls that were made or refused, and what became of them."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Annotated

import typer

from toolcell.core import ConfigError

from ...terminal.output import print_json, print_table
from ..base.options import DEFAULT_CONFIG, AsJson, ConfigPath
from ..base.record_filters import Agent, Lines, Reason, Since, Text, Tool, Until

_SHOWN = ("started_at", "agent_id", "tool_name", "outcome", "reason", "duration_ms")


def records(
    agent: Agent = None,
    tool: Tool = None,
    call: Annotated[str | None, typer.Option(help="Only those of a call.")] = None,
    status: Annotated[
        str | None,
        typer.Option(help="Only those that ended so, also programs; failed: not well."),
    ] = None,
    reason: Reason = None,
    text: Text = None,
    since: Since = None,
    until: Until = None,
    lines: Lines = 20,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Show the last attempts at calls, the oldest first."""
    from ...config.host_config import HostConfig
    from ...operator.exports import COLUMNS, as_row, facts_of, row_of
    from ...operator.filters import read_filters
    from ...runtime.assembly import open_records

    given = {"agent": agent, "tool": tool, "call": call, "status": status}
    given |= {"reason": reason, "text": text, "since": since, "until": until}
    asked = read_filters(given, datetime.now(UTC))
    asked.check()
    settings = HostConfig.from_file(config)
    if settings.state.folder is None or not settings.state.folder.exists():
        raise ConfigError(
            "there are no records", hint="name state.folder, and start the host once"
        )
    with ExitStack() as stack:
        found = open_records(settings, stack).page(**asked.wanted, limit=lines)
    facts = [facts_of(record) for record in reversed(found)]
    if as_csv:
        rows = [row_of(COLUMNS), *map(as_row, facts)]
        sys.stdout.write(b"".join(rows).decode())
    elif as_json:
        for fact in facts:
            print_json(fact)
    else:
        columns = ("number", *_SHOWN)
        print_table(columns, [[fact[name] or "" for name in columns] for fact in facts])
