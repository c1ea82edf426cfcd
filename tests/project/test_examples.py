"""The examples do what they say."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from ..conftest import missing
from ..support.paths import ROOT
from ..support.toolcell_command import TOOLCELL

EXAMPLES = ROOT / "examples"
SNIPPET = EXAMPLES / "claude_desktop_config.json"


def ran(name: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Run an example to its end and return the lines that it printed."""
    done = subprocess.run(
        [python, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_loop_in_the_style_of_openai() -> None:
    assert ran("openai_loop.py") == [
        "run_python: ok",
        "read_file: ok",
        "run_shell: error",
        "It is 42.",
    ]


@pytest.mark.promise("JA1")
def test_a_chat_about_a_file_that_was_uploaded() -> None:
    assert ran("chat_analysis.py") == [
        "How much? ok 62",
        "Draw it. ok ",
        "And in May? error ",
        "charts: ['tea.svg']",
    ]


def test_a_loop_in_the_style_of_anthropic() -> None:
    assert ran("anthropic_loop.py") == [
        "calculate: ok",
        "calculate: error",
        "calculate: denied",
        "6 * 7 is 42, and 1 / 0 is nothing.",
    ]


def test_an_agent_loop_in_a_thread() -> None:
    assert ran("flow_agent_loop.py") == [
        "user: Calculate.",
        "assistant: ",
        "tool: 42",
        "assistant: ",
        "tool: 43",
        "assistant: They are ['42', '43'].",
        "4 checkpoints",
    ]


def test_a_map_reduce() -> None:
    assert ran("flow_map_reduce.py") == ["5 words, 1 failed"]


@pytest.mark.promise("boundary-6")
def test_git_uses_a_token_that_its_program_never_has() -> None:
    for program in ("git", "openssl"):
        if shutil.which(program) is None:
            missing(f"there is no {program} here")
    assert ran("git_with_credential.py")[-3:] == [
        "DELETE: 403 not_allowed",
        "pushed: Say hello",
        "the program's token is a placeholder",
    ]


def test_the_how_to_shows_the_file() -> None:
    page = (ROOT / "docs" / "howto" / "use_a_token.md").read_text()

    assert (EXAMPLES / "github.toml").read_text() in page


def test_a_question_from_another_process() -> None:
    assert ran("flow_question.py") == [
        "interrupted {'question': 'ship books?'}",
        "among the approvals: interrupt",
        "done {'item': 'books', 'shipped': True}",
        "answered by anna",
    ]


@pytest.mark.anyio
async def test_claude_desktop_can_start_what_the_snippet_says() -> None:
    """Only the paths are the reader's own."""
    [(name, server)] = json.loads(SNIPPET.read_text())["mcpServers"].items()
    assert name == "toolcell"
    own = {"/path/to/toolcell.toml": str(EXAMPLES / "toolcell.toml")}
    assert server["command"] == "/path/to/.venv/bin/toolcell"
    parameters = StdioServerParameters(
        command=TOOLCELL, args=[own.get(arg, arg) for arg in server["args"]]
    )
    async with Client(stdio_client(parameters)) as client:
        listed = [tool.name for tool in (await client.list_tools()).tools]
        result = await client.call_tool("calculate", {"expression": "6 * 7"})

    assert listed == ["calculate", "get_today_date"]
    assert not result.is_error


def test_the_quickstart_shows_the_snippet_and_the_file() -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text()

    assert SNIPPET.read_text() in page
    tables = (EXAMPLES / "toolcell.toml").read_text().partition("\n")[2]
    assert tables in page


@pytest.mark.parametrize("name", ["pydantic_ai_agent.py", "langchain_agent.py"])
def test_a_framework_calls_the_tools_over_mcp(name: str) -> None:
    """They want another version of `mcp` than ours, so they have their own Python."""
    python = os.environ.get("TOOLCELL_EXAMPLES_PYTHON")
    if not python:
        missing(
            "TOOLCELL_EXAMPLES_PYTHON names no Python with examples/requirements.txt"
        )
    printed = ran(name, TOOLCELL, str(EXAMPLES / "toolcell.toml"), python=python)

    assert printed == ["tools: calculate, get_today_date", "calculate: 42", "It is 42."]


def test_what_frameworks_need_is_written_down() -> None:
    lines = (EXAMPLES / "requirements.txt").read_text().splitlines()
    packages = [line for line in lines if not line.startswith("#")]

    assert all(re.fullmatch(r"[a-z\[\]-]+>=[0-9.]+", line) for line in packages)
