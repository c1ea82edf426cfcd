"""`toolcell policy check` finds what policies name and nobody has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ...support.toolcell_command import toolcell

GOOD = """
[tools]
builtin = ["arithmetic", "clock"]
[[policies]]
agent_id = "a"
allow = ["calculate", "get_*", "@code"]
deny = ["*"]
"""


def checked(folder: Path, text: str, *options: str) -> Any:
    path = folder / "toolcell.toml"
    path.write_text(text)
    return toolcell("policy", "check", "--json", "--config", str(path), *options)


@pytest.mark.promise("N6")
@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ('"calculate"', '"calcualte"', "did you mean 'calculate'?"),
        ('"get_*"', '"got_*"', "a.allow[1]: 'got_*' is no tool"),
        ('deny = ["*"]', 'deny = ["clculate"]', "a.deny[0]: 'clculate' is no tool"),
        ("[[pol", '[audit]\npath = "a"\nkey = "env:NOT_SET"\n[[pol', "env:NOT_SET"),
        ("[[pol", 'python = ["not_there:x"]\n[[pol', "not_there:x cannot be imported"),
    ],
)
def test_what_is_not_there_is_told(
    tmp_path: Path, right: str, wrong: str, told: str
) -> None:
    text = GOOD.replace(right, wrong, 1)
    assert json.loads(checked(tmp_path, GOOD).stdout)["ok"]
    done = checked(tmp_path, text)
    assert done.returncode == 2
    assert told in json.loads(done.stderr)["error"]["message"]
    assert checked(tmp_path, text, "--offline").returncode == 0


@pytest.mark.promise("N15")
@pytest.mark.parametrize(
    "command", [["tools", "list"], ["policy", "explain", "calculate"], ["budget"]]
)
def test_an_agent_that_nobody_knows_is_an_error(
    tmp_path: Path, command: list[str]
) -> None:
    path = tmp_path / "toolcell.toml"
    path.write_text(GOOD)
    options = ["--agent", "scout", "--config", str(path), "--json"]
    done = toolcell(*command, *options)
    assert done.returncode == 2
    message = json.loads(done.stderr)["error"]["message"]
    assert message == "there is no policy of an agent 'scout'"
