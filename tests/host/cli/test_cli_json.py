"""`--json` everywhere: each command tells its errors as JSON, with its exit code."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from toolcell.host.cli.commands import make_app

from ...conftest import level_here
from ...support.toolcell_command import toolcell
from .conftest import Command, Done

CALL = ("x", "--agent", "a")
NO_ENGINE = ("--backend", "docker")
FAILING: dict[str, tuple[tuple[str, ...], int, str]] = {
    "init": (("no/such/folder/toolcell.toml",), 2, "config"),
    "call": (CALL, 2, "config"),
    "serve": ((), 2, "config"),
    "console": ((), 2, "config"),
    "budget": ((), 2, "config"),
    "bench": (NO_ENGINE, 4, "sandbox.unavailable"),
    "run": (("program.py", *NO_ENGINE), 4, "sandbox.unavailable"),
    "map": (("program.py", "--out", "r", *NO_ENGINE), 4, "sandbox.unavailable"),
    "doctor": (("--image", ""), 2, "config"),
    "clean": (("--no-such-option",), 2, "usage"),
    "tools pin": ((), 2, "config"),
    "tools logs": (("x",), 2, "config"),
    "tools login": (("x",), 2, "config"),
    "tools logout": (("x",), 2, "config"),
    "tools list": ((), 2, "config"),
    "tools show": (("x",), 2, "config"),
    "tools schema": (("x",), 2, "config"),
    "policy check": ((), 2, "config"),
    "policy explain": (CALL, 2, "config"),
    "approvals list": ((), 2, "config"),
    "approvals show": (("x",), 2, "config"),
    "approvals approve": (("x",), 2, "config"),
    "approvals deny": (("x",), 2, "config"),
    "approvals withdraw": (("x",), 2, "config"),
    "approvals watch": ((), 2, "config"),
    "flow list": ((), 2, "config"),
    "flow show": (("x",), 2, "config"),
    "flow history": (("x",), 2, "config"),
    "flow answer": (("x", "true"), 2, "config"),
    "flow cancel": (("x",), 2, "config"),
    "flow run": (("x",), 2, "config"),
    "flow resume": (("x",), 2, "config"),
    "flow fork": (("x",), 2, "config"),
    "flow work": ((), 2, "config"),
    "flow graph": (("x",), 2, "config"),
    "flow verify": ((), 2, "config"),
    "flow prune": (("--days", "1"), 2, "config"),
    "audit verify": ((), 2, "config"),
    "audit tail": ((), 2, "config"),
    "credentials list": ((), 2, "config"),
    "records": ((), 2, "config"),
    "backup": (("x",), 2, "config"),
    "restore": (("x",), 2, "config"),
    "images build": ((), 4, "sandbox.unavailable"),
    "images pull": (("x:1",), 4, "sandbox.unavailable"),
    "images list": ((), 4, "sandbox.unavailable"),
    "images prune": ((), 4, "sandbox.unavailable"),
    "tokens create": (("--agent", "a"), 2, "config"),
    "tokens list": ((), 2, "config"),
    "tokens revoke": (("x",), 2, "config"),
    "cluster up": ((), 2, "config"),
    "cluster status": ((), 2, "config"),
    "cluster doctor": ((), 2, "config"),
    "cluster drain": (("x",), 2, "config"),
    "cluster undrain": (("x",), 2, "config"),
    "cluster down": ((), 2, "config"),
    "cluster prefetch": (("x",), 2, "config"),
    "cluster manifest": (("--image", "x"), 2, "config"),
    "packages list": (("--days", "1"), 2, "usage"),
    "packages prune": (("--days", "-1"), 2, "usage"),
}
"""What each command cannot do in an empty folder without an engine: its arguments,
exit code and kind of error."""

TALKS = {"repl"}
"""Speaks with a person and has no result."""


def commands(app: typer.Typer, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command with its function."""
    for command in app.registered_commands:
        function = command.callback
        assert function is not None
        yield f"{before}{command.name or function.__name__.rstrip('_')}", function
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, f"{before}{group.name} ")


NAMES = [name for name, _ in commands(make_app()) if name not in TALKS]


@pytest.fixture
def alone(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Commands in a folder without a configuration, on a machine without an engine."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    Path("program.py").write_text("1")
    return command


def told(done: Done) -> Any:
    """Return the error of a command; it is one line, and there is no other."""
    assert (done.out, done.err.count("\n")) == ("", 1)
    [(word, error)] = json.loads(done.err).items()
    assert word == "error"
    assert set(error) == {"kind", "message", "hint", "retryable", "details"}
    return error


def test_every_command_has_the_option_and_a_row_here() -> None:
    without = {
        name
        for name, function in commands(make_app())
        if "as_json" not in inspect.signature(function).parameters
    }

    assert without == TALKS
    assert set(NAMES) == FAILING.keys()


@pytest.mark.parametrize("name", NAMES)
def test_an_error_is_one_line_of_json_with_its_exit_code(
    alone: Command, name: str
) -> None:
    """DESIGN §9: 2 bad usage or input, 4 we could not."""
    arguments, code, kind = FAILING[name]
    done = alone(*name.split(), *arguments, "--json")

    assert (done.code, told(done)["kind"]) == (code, kind)
    # For people it is a line, too.
    plain = alone(*name.split(), *arguments)
    assert plain.code == code
    assert plain.out == ""


@pytest.mark.parametrize("name", [*NAMES, "tools", ""])
def test_a_command_line_that_is_wrong_is_told_as_json(
    alone: Command, name: str
) -> None:
    done = alone(*name.split(), "--json", "--no-such-option")

    assert (done.code, told(done)["kind"]) == (2, "usage")


def test_what_is_said_beside_a_result_is_json(tmp_path: Path) -> None:
    out = tmp_path / "out"
    program = b"import os\nos.makedirs('artifacts')\nopen('artifacts/a', 'w')"
    done = toolcell(
        *("run", "-", "--json", "--backend", "subprocess", "--out", str(out)),
        stdin=program,
    )

    assert json.loads(done.stdout)["status"] == "ok"
    notices = [json.loads(line) for line in done.stderr.splitlines()]
    assert [list(notice) for notice in notices] == (
        [["notice"]] * (level_here() == "confined")
    )
