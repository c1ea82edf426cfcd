"""The benchmarks run and print their table; what they measure is not judged here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from toolcell.sandbox import SandboxConfig, SandboxManager

from .conftest import missing

pytestmark = pytest.mark.anyio
RUN = Path(__file__).parent.parent / "benchmarks" / "run.py"
SUBPROCESS_ROWS = [
    "subprocess-on-demand",
    "subprocess-prepared",
    "subprocess-sustained",
    "cpu-bound",
    "command-line",
    "idle-memory",
]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUN), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


async def test_the_subprocess_rows_print_their_table(tmp_path: Path) -> None:
    if shutil.which("bwrap") is None or not Path("/usr/bin/python3").exists():
        missing("the baselines need bubblewrap and the system's python3")
    async with SandboxManager(SandboxConfig(backend="subprocess")):
        pass
    figures = tmp_path / "figures.json"
    done = bench(
        "--only", *SUBPROCESS_ROWS, "--runs", "3", "--json", str(figures)
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    for work in ("on demand", "prepared", "4 tasks", "CPU-bound", "toolcell run"):
        assert work in done.stdout, done.stdout
    rows = json.loads(figures.read_text())["rows"]
    works = {row["work"] for row in rows}
    assert len(works) == 8 - sum("idle" in work for work in works) % 2
    assert all(row["ours"]["p50"] > 0 for row in rows)
    assert {row["baseline"]["name"] for row in rows if row["baseline"]} == {
        "bwrap python3 -I -c",
        "python3 -I -c",
        "python3 hello.py",
    }
