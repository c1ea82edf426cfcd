"""What commands print of untrusted text acts on no terminal, and never raises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolcell.core import ErrorInfo
from toolcell.host.terminal.output import (
    print_error,
    print_json,
    print_notice,
    print_table,
)

from ...support.hidden_text import ATTACKS

TOOLCELL = str(Path(sys.executable).with_name("toolcell"))


@pytest.mark.promise("E-78")
@pytest.mark.parametrize(("attack", "seen"), ATTACKS.values(), ids=ATTACKS)
def test_tables_notices_and_errors_write_it_out(
    attack: str, seen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_table(("name",), [[attack]])
    print_notice(attack, as_json=False)
    error = ErrorInfo.model_construct(kind="x", message=attack, hint=attack)
    print_error(error, as_json=False)
    out, err = capsys.readouterr()

    assert out == f"{seen}\n"
    assert err == f"toolcell: {seen}\ntoolcell: {seen} ({seen})\n"


@pytest.mark.promise("E-78")
@pytest.mark.parametrize("attack", [each[0] for each in ATTACKS.values()], ids=ATTACKS)
def test_json_is_printable_ascii(
    attack: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_json({attack: attack})
    out = capsys.readouterr().out

    assert out.count("\n") == 1 and out.endswith("\n")
    assert out[:-1].isascii() and out[:-1].isprintable()


def test_a_cell_of_a_table_makes_no_further_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("name", "state"), [["x\ny\tapproved", "waits"]])

    assert capsys.readouterr().out == "x\\ny\\tapproved\twaits\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_a_name_that_is_no_text_is_told_in_any_locale(
    encoding: str, tmp_path: Path
) -> None:
    name = os.fsdecode(b"\xff\x9b2J.toml") + "→"
    done = subprocess.run(
        [TOOLCELL, "init", name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=120,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u{dcff}\\u{dc9b}2J.toml" in done.stdout
    assert b"\x9b" not in done.stdout.replace("→".encode(), b"")


@pytest.mark.parametrize("as_json", [(), ("--json",)], ids=["text", "json"])
def test_a_usage_error_about_a_name_that_is_no_text_is_told(
    as_json: tuple[str, ...],
) -> None:
    done = subprocess.run(
        [TOOLCELL, os.fsdecode(b"run\xff"), *as_json],
        capture_output=True,
        timeout=120,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, b"")
    assert b"No such command" in done.stderr and b"Traceback" not in done.stderr
