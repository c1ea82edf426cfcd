"""Commands tell the audit log who calls, and what becomes of credentials."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolcell.guard import AuditLog
from toolcell.host.terminal.user_name import account_name

from ...support.mcp.served_hosts import CONFIG, written
from .conftest import Command

AUDITED = CONFIG + '[audit]\npath = "audit.jsonl"\n'
SUM = '{"expression": "6 * 7"}'


def records(folder: Path, *events: str) -> list[dict[str, Any]]:
    """Return the records of some events."""
    lines = (folder / "audit.jsonl").read_text().splitlines()
    return [each for each in map(json.loads, lines) if each["event"] in events]


@pytest.mark.promise("JC4", "JC10")
def test_commands_tell_who_called_and_made_tokens(
    command: Command, tmp_path: Path
) -> None:
    written(tmp_path, AUDITED)
    command("call", "calculate", "--args", SUM, "--agent", "a")
    command("tokens", "create", "--agent", "a", "--operator")
    [token] = command("tokens", "list", "--json").json
    command("tokens", "revoke", token["id"])

    assert [each["caller"] for each in records(tmp_path, "decision")] == [
        f"user {account_name()}"
    ]
    made, gone = records(tmp_path, "token_created", "token_revoked")
    assert (made["agent_id"], made["operator"]) == ("a", "True")
    assert made["id"] == gone["id"] == token["id"]
    assert made["by"] == gone["by"] == account_name()


@pytest.mark.promise("JC4")
def test_the_last_records_of_a_time_and_an_agent(
    command: Command, tmp_path: Path
) -> None:
    times = iter([0.0, 86_400.0 * 1, 86_400.0 * 2, 86_400.0 * 2])
    path = tmp_path / "audit.jsonl"
    with AuditLog(path, clock=lambda: next(times)) as log:
        for number, agent in enumerate(("a", "a", "a", "b")):
            log.append("note", agent_id=agent, number=number)

    def shown(*options: str) -> list[int]:
        done = command("audit", "tail", "--file", str(path), "--json", *options)
        return [json.loads(line)["number"] for line in done.out.splitlines()]

    assert shown("--since", "1970-01-02") == [1, 2, 3]
    assert shown("--since", "1970-01-03T01:00+01:00", "--agent", "a") == [2]
    assert shown("--agent", "a", "--lines", "2") == [1, 2]
    assert command("audit", "tail", "--since", "noon").code == 2


@pytest.mark.promise("JC5")
def test_a_restore_is_in_the_log_and_says_what_it_revives(
    command: Command, tmp_path: Path
) -> None:
    written(tmp_path, AUDITED)
    command("tokens", "create", "--agent", "a")
    command("backup", str(tmp_path / "copy"))
    [token] = command("tokens", "list", "--json").json
    command("tokens", "revoke", token["id"])
    (tmp_path / "state").rename(tmp_path / "old")
    (tmp_path / "audit.jsonl").unlink()
    done = command("restore", str(tmp_path / "copy"))

    assert "revoked since counts again" in done.err
    [restored] = records(tmp_path, "restored")
    assert restored["by"] == account_name()
