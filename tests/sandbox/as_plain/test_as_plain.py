"""Small programs do in cells what `python3 file.py` does: output, exit code, files."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.sandbox import ExecutionResult, SandboxManager

from ...conftest import BackendRow

pytestmark = pytest.mark.anyio

STDIN = b"first\n\xc3\xa4\nlast"
PROGRAMS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("programs.toml").read_text()
)
KINDS = sorted({name.split()[0] for name in PROGRAMS})
# As docs/languages.md says.
DIFFERENT = {"sees 18": "cells are in UTF-8 mode"}
# What is left in the folder `artifacts` can be compared.
IN_ARTIFACTS = "import os; os.mkdir('artifacts'); os.chdir('artifacts')\n"


async def plain(folder: Path, code: str) -> tuple[Any, ...]:
    """Return stdout, the last line of stderr, exit code and files of plain Python."""
    folder.mkdir()
    (folder / "main.py").write_text(code)
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(folder)}
    done = await anyio.run_process(
        [sys.executable, "main.py"], input=STDIN, cwd=folder, env=env, check=False
    )
    left = folder / "artifacts"
    files = {
        str(each.relative_to(left)): each.stat().st_size
        for each in left.rglob("*")
        if each.is_file()
    }
    return done.stdout, last_line(done.stderr), done.returncode, files


def last_line(stderr: bytes) -> bytes:
    lines = stderr.strip().splitlines()
    return lines[-1].strip() if lines else b""


async def in_a_cell(sandbox: SandboxManager, code: str) -> tuple[Any, ...]:
    result: ExecutionResult = await sandbox.run(code, stdin=STDIN)
    files = {each.name: each.size for each in result.artifacts}
    return result.stdout_bytes, last_line(result.stderr_bytes), result.exit_code, files


@pytest.mark.parametrize("kind", KINDS)
async def test_as_plain(
    backend: BackendRow, sandbox: SandboxManager, tmp_path: Path, kind: str
) -> None:
    found = []
    for name, program in PROGRAMS.items():
        if name.split()[0] != kind or name in DIFFERENT:
            continue
        code = (IN_ARTIFACTS if kind == "files" else "") + program["code"]
        wanted = await plain(tmp_path / name.replace(" ", "-"), code)
        got = await in_a_cell(sandbox, code)
        if got != wanted:
            found.append((name, got, wanted))
    assert not found
