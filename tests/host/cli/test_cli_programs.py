"""What `toolcell run` takes for a program, gives it, and says when it fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import InvalidInputError
from toolcell.host.cli.programs.program_files import program_of
from toolcell.host.cli.programs.run_hints import hints
from toolcell.sandbox import ExecutionResult, SandboxManager
from toolcell.sandbox.results.result import ExceptionInfo

from ...conftest import BackendRow
from ...support.terminal import Terminal
from ...support.toolcell_command import TOOLCELL, toolcell

SUBPROCESS = ("--backend", "subprocess")
TOLD = "import json, sys\nprint(json.dumps([sys.argv, __file__, sys.stdin.read()]))"


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def said(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    return done.stderr.decode().splitlines()


# Arguments and standard input.


@pytest.mark.promise("N9")
def test_a_program_gets_arguments_and_standard_input(tmp_path: Path) -> None:
    file = written(tmp_path, "my prog.py", TOLD)
    arguments = ("a", "b c", "--", "--flag", "ü")
    done = toolcell("run", file, *SUBPROCESS, "--stdin", *arguments, stdin=b"data\n")

    argv = ["my prog.py", "a", "b c", "--flag", "ü"]
    told, path, text = json.loads(done.stdout)
    assert (told, text) == (argv, "data\n")
    assert path.endswith("/work/my prog.py")


@pytest.mark.promise("N9")
def test_a_program_that_is_standard_input_has_arguments() -> None:
    code = b"import sys\nprint(sys.argv, '__file__' in globals())"
    done = toolcell("run", "-", *SUBPROCESS, "a", stdin=code)
    both = toolcell("run", "-", *SUBPROCESS, "--stdin", stdin=code)

    assert done.stdout == b"['main.py', 'a'] True\n"
    assert (both.returncode, both.stdout) == (2, b"")
    [line] = said(both)
    assert line.startswith("toolcell: standard input is the program already (leave out")


@pytest.mark.promise("N9")
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "import sys; print(sys.argv[1:], sys.stdin.buffer.read())"),
        ("bash", "printf '%s|' \"$@\"; cat"),
        (
            "node",
            "console.log(process.argv.slice(2), require('fs').readFileSync(0, 'utf8'))",
        ),
    ],
)
async def test_every_language_gets_them(
    sandbox: SandboxManager, backend: BackendRow, language: Any, code: str
) -> None:
    if language == "node" and backend.name != "subprocess":
        pytest.skip("the image has no node")
    given: dict[str, Any] = {"argv": ["p", "a", "b c"], "stdin": b"in\xc3\xa9"}
    result = await sandbox.run(code, language=language, **given)
    again = await sandbox.run("import sys\n[sys.argv, sys.stdin.read()]")

    expected = {
        "python": "['a', 'b c'] b'in\\xc3\\xa9'\n",
        "bash": "a|b c|iné",
        "node": "[ 'a', 'b c' ] iné\n",
    }
    assert (result.status, result.stdout) == ("ok", expected[language])
    assert again.value == [["main.py"], ""]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "given",
    [
        {"argv": "text"},
        {"argv": ["p", 1]},
        {"argv": ["p", "a\0b"]},
        {"argv": ["p", "\udc80"]},
        {"argv": ["p", "x" * 33_554_432]},
        {"stdin": "text"},
        {"stdin": bytes(33_554_433)},
    ],
    ids=lambda given: next(iter(given)),
)
async def test_what_cannot_be_given_is_refused(
    sandbox: SandboxManager, given: Any
) -> None:
    with pytest.raises(InvalidInputError):
        await sandbox.run("1", **given)


# What runs, and as what.


@pytest.mark.promise("N10")
@pytest.mark.parametrize(
    ("name", "text", "language"),
    [
        ("p.py", "1", "python"),
        ("P.PY", "1", "python"),
        ("-", "#!/bin/ruby", "python"),
        ("p.bash", "1", "bash"),
        ("p.mts", "1", "node"),
        ("tool", "#!/usr/bin/env python3\n1", "python"),
        ("tool", "#! /bin/sh -e\n1", "bash"),
        ("tool", "#!/usr/bin/env -S node --x\n1", "node"),
        ("tool", "#!/opt/python3.12\n1", "python"),
    ],
)
def test_files_say_what_they_are(name: str, text: str, language: str) -> None:
    assert program_of(name, text, None) == (text, language)


@pytest.mark.promise("N10")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.rb", "puts 1"),
        ("p.sql", "select 1"),
        ("passwd", "root:x:0"),
        ("tool", "#!/usr/bin/env ruby\n1"),
        ("tool", "#!/usr/bin/pythonista\n1"),
        ("p.rb", "#!/usr/bin/env python3\n1"),
        ("book.ipynb", "1"),
        ("book.ipynb", "{}"),
        (
            "book.ipynb",
            '{"cells": [], "metadata": {"kernelspec": {"language": "julia"}}}',
        ),
        (
            "book.ipynb",
            '{"cells": [], "metadata": {"language_info": {"name": "R"}}}',
        ),
    ],
)
def test_what_is_none_of_them_is_not_run(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(InvalidInputError):
        program_of(name, text, None)


@pytest.mark.promise("N10")
def test_an_unknown_kind_is_run_only_if_someone_insists(tmp_path: Path) -> None:
    file = written(tmp_path, "script.rb", "print(1)")
    refused = toolcell("run", file, *SUBPROCESS)
    insisted = toolcell("run", file, *SUBPROCESS, "--language", "python")

    assert (refused.returncode, refused.stdout) == (2, b"")
    assert "--language" in said(refused)[0]
    assert (insisted.returncode, insisted.stdout) == (0, b"1\n")


@pytest.mark.promise("N10", "FP9", "FP10")
def test_the_code_cells_of_a_notebook_run(tmp_path: Path) -> None:
    """Each shows its value, where it runs."""
    cells = [
        {"cell_type": "markdown", "source": ["# not run"], "kept": "x" * (2 << 20)},
        {"cell_type": "code", "source": ["x = 41\n", "print(x)\n", "x + 1"]},
        {"cell_type": "code", "source": "%matplotlib inline\n!echo {x}"},
        {"cell_type": "code", "source": "'last'"},
    ]
    book = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4})
    done = toolcell("run", written(tmp_path, "book.ipynb", book), *SUBPROCESS)

    assert (done.returncode, done.stdout) == (0, b"41\n42\n41\n'last'\n")


# What helps.


@pytest.mark.promise("N8")
def test_artifacts_that_nobody_keeps_are_named(tmp_path: Path) -> None:
    code = b"import os\nos.mkdir('artifacts')\nopen('artifacts/a.txt', 'w').write('x')"
    left = toolcell("run", "-", *SUBPROCESS, stdin=code)
    kept = toolcell("run", "-", *SUBPROCESS, "--out", str(tmp_path / "o"), stdin=code)

    line = "toolcell: 1 artifact left behind: a.txt (--out FOLDER keeps it)"
    assert line in said(left)
    assert "left behind" not in kept.stderr.decode()


@pytest.mark.promise("JF3", "N12", "QP12")
@pytest.mark.parametrize(
    ("code", "option"),
    [
        ("import no_such_module.inner", "--package NAME"),
        (
            "import urllib.request as u; u.urlopen('http://example.org')",
            "--allow-host HOST:PORT",
        ),
        (
            "import socket; socket.create_connection(('192.0.2.1', 80))",
            "--allow-host HOST:PORT",
        ),
        ("input()", "--stdin"),
    ],
)
def test_a_program_that_lacks_something_is_told_the_option(
    code: str, option: str
) -> None:
    done = toolcell("run", "-", *SUBPROCESS, stdin=code.encode())

    hint, summary = said(done)[-2:]
    assert summary.startswith("toolcell: error")
    assert option in hint


def test_other_failures_get_no_hint() -> None:
    for code in (b"1 / 0", b"import tkinter.nothing", b"raise OSError('no')"):
        done = toolcell("run", "-", *SUBPROCESS, stdin=code)

        assert sum(line.startswith("toolcell: ") for line in said(done)) == 1


def test_a_warning_of_something_else_brings_no_hint_of_packages() -> None:
    exception = ExceptionInfo(
        type="ModuleNotFoundError", message="of my own", traceback=""
    )
    limit = "artifacts left out: a.txt"
    result = ExecutionResult(status="error", exception=exception, warnings=(limit,))

    assert not hints(result, left=(), has_network=False, has_stdin=False, saved=True)


@pytest.mark.promise("N22")
def test_the_last_value_is_shown_on_a_terminal(tmp_path: Path) -> None:
    file = written(tmp_path, "p.py", "40 + 2")
    with Terminal("run", "-", *SUBPROCESS, folder=tmp_path) as terminal:
        terminal.send("40 + 2\n\x04")
        terminal.expect("\n42\n")
    to_a_pipe = toolcell("run", "-", *SUBPROCESS, stdin=b"40 + 2")
    of_a_file = toolcell("run", file, *SUBPROCESS)

    assert to_a_pipe.stdout == of_a_file.stdout == b""


@pytest.mark.promise("N23")
@pytest.mark.parametrize("option", [(), ("--json",)])
def test_a_reader_that_leaves_is_no_news(option: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        done = subprocess.run(
            [TOOLCELL, "run", "-", *SUBPROCESS, *option],
            input=b"print('x')",
            stdout=pipe,
            stderr=subprocess.PIPE,
            timeout=200,
            check=False,
        )

    assert done.returncode == 141
    assert b"Broken pipe" not in done.stderr


@pytest.mark.promise("N21")
def test_what_init_suggests_can_be_pasted(tmp_path: Path) -> None:
    path = tmp_path / "my host.toml"
    done = toolcell("init", str(path))
    path.write_text(path.read_text().replace("# backend", "backend"))
    suggested = done.stdout.decode().splitlines()[-1]
    pasted = subprocess.run(
        ["bash", "-c", suggested.replace("toolcell", TOOLCELL, 1)],
        cwd=tmp_path,
        capture_output=True,
        timeout=200,
        check=False,
    )

    assert (pasted.returncode, pasted.stdout) == (0, b"42\n"), pasted.stderr


@pytest.mark.promise("N26")
@pytest.mark.skipif(shutil.which("fc-list") is None, reason="no fontconfig here")
def test_fonts_are_looked_for_without_noise() -> None:
    """matplotlib asks fontconfig, whose complaints would be each plot's stderr."""
    code = b"import subprocess; subprocess.run(['fc-list'], check=True)"
    done = toolcell("run", "-", *SUBPROCESS, stdin=code)

    assert done.returncode == 0
    assert "Fontconfig" not in done.stderr.decode()
