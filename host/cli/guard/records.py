"""`toolcell records`: the calls that were made or refused, and what became of them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolcell.core import ConfigError

from ...terminal.output import print_json, print_table
from ..base.options import DEFAULT_CONFIG, AsJson, ConfigPath
from ..base.times import Since, Until, read_time

if TYPE_CHECKING:
    from toolcell.tools.spi import NumberedRecord

_SHOWN = ("started_at", "agent_id", "tool_name", "status", "reason", "duration_ms")


def records(
    agent: Annotated[str | None, typer.Option(help="Only those of an agent.")] = None,
    tool: Annotated[str | None, typer.Option(help="Only those of a tool.")] = None,
    call: Annotated[str | None, typer.Option(help="Only those of a call.")] = None,
    since: Since = None,
    until: Until = None,
    lines: Annotated[
        int, typer.Option(min=1, max=100_000, help="The number of records.")
    ] = 20,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Show the last attempts at calls, the oldest first."""
    from ...config.host_config import HostConfig
    from ...runtime.assembly import open_records

    settings = HostConfig.from_file(config)
    if settings.state.folder is None or not settings.state.folder.exists():
        raise ConfigError(
            "there are no records", hint="name state.folder, and start the host once"
        )
    with ExitStack() as stack:
        found = open_records(settings, stack).page(
            agent_id=agent,
            tool_name=tool,
            call_id=call,
            since=None if since is None else read_time(since),
            until=None if until is None else read_time(until),
            limit=lines,
        )
    facts = [_facts(each) for each in reversed(found)]
    if as_json:
        for each in facts:
            print_json(each)
        return
    columns = ("number", *_SHOWN)
    print_table(columns, [[each[name] or "" for name in columns] for each in facts])


def _facts(found: NumberedRecord) -> dict[str, Any]:
    record = found.record
    return {
        "number": found.number,
        **record._asdict(),
        "usage": dict(record.usage),
        "started_at": record.started_at.isoformat(timespec="milliseconds"),
        "duration_ms": round(record.duration_ms, 3),
    }
