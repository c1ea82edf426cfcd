"""Files and JSON that cannot be read, and disks that are full, are told as they are."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from ...support.toolcell_command import TOOLCELL, toolcell

_MAY_READ_ALL = "-dac_override,-dac_read_search"
BARRED = (
    ()
    if os.getuid()
    else ("setpriv", "--bounding-set", _MAY_READ_ALL, "--inh-caps", _MAY_READ_ALL)
)
"""Root, too, can read no file whose mode forbids it."""

DEEP = "[" * 20_000
PICTURE = """
png = b"\\x89PNG\\r\\n\\x1a\\n" + bytes(30_000)
display({"image/png": png}, raw=True)
"""


def said(*arguments: str, stdin: bytes = b"") -> str:
    """Return the one line that refuses a command."""
    done = toolcell(*arguments, stdin=stdin)
    assert (done.returncode, done.stdout) == (2, b"")
    text = done.stderr.decode()
    assert text.startswith("toolcell: ")
    assert text.count("\n") == 1
    return text.removeprefix("toolcell: ")


def on_a_small_disk(folder: Path, *arguments: str, kib: int) -> tuple[int, str]:
    """Run a command that writes no file beyond a size; return its code and errors."""
    command = f"ulimit -f {kib}; exec {shlex.join([TOOLCELL, *arguments])}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, check=False
    )
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize(
    "arguments",
    [
        ["tools", "list", "--config", "closed"],
        ["policy", "check", "closed"],
        ["audit", "verify", "--file", "closed"],
        ["audit", "tail", "--file", "closed"],
        ["map", "closed", "--out", "out"],
        ["map", "programs", "--out", "closed"],
        ["init", "closed"],
    ],
)
def test_a_command_says_itself_why_it_cannot_use_a_file(
    tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "closed").touch(mode=0)
    (tmp_path / "programs").touch()
    done = subprocess.run(
        [*BARRED, TOOLCELL, *arguments], cwd=tmp_path, capture_output=True, check=False
    )

    assert (done.returncode, done.stdout) == (2, b"")
    text = done.stderr.decode()
    assert text.startswith("toolcell: ")
    assert "closed" in text
    assert text.count("\n") == 1


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    config, policies = tmp_path / "a.toml", tmp_path / "p.toml"
    config.write_bytes(b"# \xe9")
    policies.write_bytes(b"# \xe9")

    assert "a.toml is not UTF-8 (byte 2)" in said(
        "tools", "list", "--config", f"{config}"
    )
    assert "p.toml is not UTF-8 (byte 2)" in said("policy", "check", f"{policies}")


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf[[policies]]\nagent_id = 'a'\n"
    for name in ("a.toml", "p.toml"):
        (tmp_path / name).write_bytes(text)

    by_config = toolcell("policy", "check", "--config", str(tmp_path / "a.toml"))
    by_file = toolcell("policy", "check", str(tmp_path / "p.toml"))
    assert by_config.stdout.startswith(b"ok: 1 policy, version")
    assert by_file.stdout == by_config.stdout


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[tools]\npython = ['tools']", "tools.python.0: write package.module:name ("),
        ("[flows]\ngraphs = ['x.y']", "flows.graphs.0: write package.module:name ("),
        ("[telemetry]\nmetrics_address = 'x'", "metrics_address: write HOST:PORT ("),
    ],
)
def test_no_pattern_is_shown_for_a_name(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "toolcell.toml"
    path.write_text(text)

    assert told in said("tools", "list", "--config", str(path))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("{", "--args is no JSON: Expecting property name"),
        (DEEP, "--args is no JSON: nested too deeply"),
        ("[]", "--args is no JSON object"),
        (
            os.fsdecode(b'{"\xff": 1}'),
            "--args is no JSON: it, or the locale,",
        ),
        ("-", "standard input is no JSON: Expecting value"),
    ],
)
def test_arguments_that_are_no_json_are_told(given: str, told: str) -> None:
    assert said("call", "add", "--agent", "a", "--args", given).startswith(told)


def test_states_and_answers_that_are_no_json_are_told() -> None:
    state = said("flow", "run", "graph", "--input", DEEP)
    answer = said("flow", "answer", "thread", DEEP)

    assert state.startswith("--input is no JSON: nested too deeply")
    assert answer.startswith("the answer is no JSON: nested too deeply")


def test_an_input_in_no_encoding_is_told() -> None:
    text = os.fsdecode(b"x=\xff")

    assert said("run", "-", "--input", text).startswith("--input x is not UTF-8")


@pytest.mark.parametrize("days", ["800000", "1e30", "inf"])
def test_days_before_all_dates_delete_nothing(tmp_path: Path, days: str) -> None:
    path = tmp_path / "toolcell.toml"
    path.write_text("[state]\nfolder = 'state'")
    done = toolcell("flow", "prune", "--days", days, "--config", str(path))

    assert done.returncode == 0
    assert done.stderr == b"toolcell: 0 threads deleted\n"


def test_a_configuration_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    code, told = on_a_small_disk(tmp_path, "init", kib=1)

    assert code == 2
    assert told.startswith("toolcell: cannot write toolcell.toml: File too large")
    assert list(tmp_path.iterdir()) == []


GROUPS = (
    "",
    *("tools", "policy", "approvals", "flow", "audit", "tokens", "cluster"),
    *("packages", "images"),
)


@pytest.mark.parametrize("group", GROUPS)
def test_a_list_of_commands_says_of_each_what_it_does(group: str) -> None:
    plain = {**os.environ, "COLUMNS": "80"}
    shown = toolcell(*group.split(), "--help", env=plain).stdout.decode()

    commands = shown[shown.index("Commands:") :].splitlines()[1:]
    assert len(commands) > 1
    assert [command for command in commands if command.endswith("...")] == []


def test_a_narrow_terminal_cuts_nothing() -> None:
    narrow = {**os.environ, "COLUMNS": "30"}
    done = toolcell("doctor", env=narrow)

    shown = done.stdout.decode()
    assert "\n┏" in shown
    assert "…" not in shown


def test_an_artifact_that_was_not_saved_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "picture.py").write_text(PICTURE)
    run = ("run", "--backend", "subprocess", "--out", "out", "picture.py")
    code, told = on_a_small_disk(tmp_path, *run, kib=24)

    assert "cannot write out/output-1.png: File too large" in told
    assert "toolcell: ok" in told
    assert code == 4
    assert list((tmp_path / "out").iterdir()) == []


def test_results_of_a_batch_are_for_their_owner(tmp_path: Path) -> None:
    programs, results = tmp_path / "programs.jsonl", tmp_path / "results.jsonl"
    programs.write_text('{"code": "1"}\n')
    done = toolcell(
        "map", str(programs), "--out", str(results), "--backend", "subprocess"
    )

    assert done.returncode == 0
    assert stat.S_IMODE(results.stat().st_mode) == 0o600
