"""What holds on the oldest Python holds on a newer one: a selection of the tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ..conftest import missing

ROOT = Path(__file__).parents[2]
VARIABLE = "TOOLCELL_NEWER_PYTHON"
ON_THIS_MACHINE = "not docker and not runsc and not cluster"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "selection",
    [
        ["tests/core"],
        ["tests/guard/policy", "tests/guard/audit", "tests/guard/approvals"],
        ["tests/tools/definition", "tests/tools/registry", "tests/flow/state"],
        ["tests/sandbox/test_runs.py", "tests/sandbox/test_statuses.py"],
        ["tests/sandbox/test_session_state.py", "tests/sandbox/programs"],
    ],
    ids="core guard tools runs sessions".split(),
)
def test_a_selection_passes_on_a_newer_python(selection: list[str]) -> None:
    python = os.environ.get(VARIABLE)
    if python == "":
        pytest.skip("this machine has no newer Python")
    if not python:
        missing(f"{VARIABLE} names no Python with toolcell and its extra `dev`")
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-k", ON_THIS_MACHINE]

    done = subprocess.run(
        [python, "-m", "pytest", *options, *selection],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
