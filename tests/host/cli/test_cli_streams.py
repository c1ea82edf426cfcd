"""Standard streams that are closed, full or broken: one line and a code say so."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ...support.toolcell_command import TOOLCELL, toolcell

CONFIG = """
[sandbox]
backend = "subprocess"
[tools]
builtin = ["arithmetic"]
[state]
folder = "state"
[audit]
path = "audit.jsonl"
[server]
agent_id = "a"
[[policies]]
agent_id = "a"
allow = ["calculate"]
"""
RUN = "run program.py --backend subprocess"
FULL = "toolcell: cannot write the output: No space left on device\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "toolcell.toml").write_text(CONFIG)
    (tmp_path / "program.py").write_text("print('said')")
    monkeypatch.chdir(tmp_path)
    call = ("call", "calculate", "--agent", "a", "--args", '{"expression": "1"}')
    assert toolcell(*call).returncode == 0
    return tmp_path


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run a command with redirections of bash."""
    return subprocess.run(
        ["bash", "-c", f"{TOOLCELL} {line}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def without_reader(line: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose output goes to a pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        return subprocess.run(
            [TOOLCELL, *line.split()],
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.mark.parametrize(
    "line",
    [
        f"{RUN} >&-",
        f"{RUN} <&- >&- 2>&-",
        "run - --backend subprocess <&-",
        "repl --backend subprocess <&-",
        "serve <&-",
    ],
)
def test_a_closed_stream_is_an_empty_one(folder: Path, line: str) -> None:
    done = shell(line)

    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


def test_an_error_never_goes_where_results_go(folder: Path) -> None:
    done = shell("run nofile.py --json 2>&-")

    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    "line",
    [
        RUN,
        "--help",
        "doctor",
        "tools list",
        "packages list",
        "clean",
        "policy check",
        "audit verify",
        "audit tail",
    ],
)
def test_output_that_is_lost_is_told(folder: Path, line: str) -> None:
    full, broken = shell(f"{line} >/dev/full"), without_reader(line)

    assert (full.returncode, full.stderr) == (4, FULL)
    assert (broken.returncode, broken.stderr) == (141, "")


@pytest.mark.parametrize("line", [RUN, "doctor", "tools list", "clean", "audit verify"])
def test_output_that_is_lost_is_told_as_json(folder: Path, line: str) -> None:
    done = shell(f"{line} --json >/dev/full")

    assert done.returncode == 4
    assert json.loads(done.stderr)["error"]["kind"] == "output"


def test_nothing_can_be_told_where_both_are_full(folder: Path) -> None:
    assert shell(f"{RUN} >/dev/full 2>/dev/full").returncode == 4
