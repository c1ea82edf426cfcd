"""`toolcell init`: a configuration to begin with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from toolcell.core import ConfigError
from toolcell.core.text.printable import escaped_line

from ...terminal.output import print_json
from ..base.options import DEFAULT_CONFIG, AsJson

STARTER = """\
# The configuration of a toolcell host; docs/configuration.md explains every key.
# Variables of the environment come first: TOOLCELL__SANDBOX__BACKEND=docker.

# "production" refuses weak isolation, approval without people, and open failure.
profile = "production"

# Cells, in which code runs; they have no network.
[sandbox]
backend = "auto"                  # docker, subprocess, or auto: the best here
minimum_isolation = "confined"    # nothing weaker is ever used
# image = "python:3.12-slim"
[sandbox.limits]
wall_seconds = 30.0
memory_mib = 256

# The tools of this host. The policies below say who may call them.
[tools]
builtin = ["arithmetic", "clock", "code"]  # also: database, files, http
# python = ["my_package.my_tools:tools"]
# [tools.http]
# hosts = ["example.com"]
# [tools.mcp.time]                # offered once `toolcell tools pin` approved it
# command = "mcp-server-time"
# cell = { packages = ["mcp-server-time"] }

# Counters, approvals and records, for all processes of this machine.
[state]
folder = ".toolcell"
# redis_url = "env:REDIS_URL"     # secrets are named, never written here

# Every decision and outcome, in a chain of hashes.
[audit]
path = ".toolcell/audit.jsonl"
# key = "env:TOOLCELL_AUDIT_KEY"

# `toolcell serve` offers the tools to MCP clients, as this agent. Over HTTP
# (`toolcell serve --http 127.0.0.1:8931`) the client's token names the agent.
[server]
agent_id = "assistant"
# approval_seconds = 30.0         # then a call waits as pending
# allowed_hosts = ["tools.example.com"]

# The rights of each agent. A call that no rule allows is refused.
[[policies]]
agent_id = "assistant"
allow = ["calculate", "get_today_date", "run_python"]
ask = ["run_shell"]               # waits for `toolcell approvals approve`
rate_limits = ["60/minute"]
max_concurrency = 4
budgets = [{ unit = "wall_ms", limit = 3_600_000, window = "day" }]
"""

_SUM = '{"expression": "6 * 7"}'


def init(
    path: Annotated[
        Path, typer.Argument(readable=False, help="The file to write.")
    ] = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Write a commented configuration with safe defaults."""
    try:
        _write_new(path)
    except FileExistsError:
        raise ConfigError(
            f"there is a file {path} already", hint="name another one"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}",
            hint="name a file in a folder with room that this user may write",
        ) from None
    if as_json:
        print_json({"path": str(path)})
    else:
        where = "" if path == DEFAULT_CONFIG else f" --config {shlex.quote(str(path))}"
        print(f"wrote {escaped_line(str(path))}; try:")
        call = f"toolcell call calculate --agent assistant --args '{_SUM}'{where}"
        print(escaped_line(call))


def _write_new(path: Path) -> None:
    """Write the file whole, or leave none. Raises OSError."""
    with path.open("x", encoding="utf-8") as file:
        try:
            file.write(STARTER)
            file.flush()
        except OSError:
            path.unlink()
            raise
