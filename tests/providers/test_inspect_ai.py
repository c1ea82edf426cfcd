"""Inspect AI finds toolcell, and its own checks of sandboxes hold."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any

import pytest

from toolcell.sandbox import Limits, SandboxConfig

from ..conftest import DOCKER, SUBPROCESS, missing
from ..support.paths import ROOT

CHECKS = ROOT / "tests" / "providers" / "inspect_self_check.py"
TASK = """
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput
from inspect_ai.scorer import includes
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

@solver
def work():
    async def solve(state, generate):
        await sandbox().exec(["sh", "-c", "id -u > f"])
        text = await sandbox().read_file("f")
        state.output = ModelOutput.from_content("none", text)
        return state
    return solve

samples = [Sample(input="go", target="10001"), Sample(input="go", target="10001")]
task = Task(dataset=samples, solver=work(), scorer=includes(), sandbox="toolcell")
[log] = eval(task, model="mockllm/model", display="none", log_format="json")
print(log.status, [each.output.completion for each in log.samples])
"""


@pytest.fixture(scope="module")
def python() -> str:
    path = os.environ.get("TOOLCELL_PROVIDERS_PYTHON")
    if not path:
        missing("TOOLCELL_PROVIDERS_PYTHON names no Python with toolcell[inspect]")
    return path


def run(python: str, *arguments: str, **options: Any) -> str:
    done = subprocess.run(
        [python, *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return str(done.stdout)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(SUBPROCESS, id="subprocess"),
        pytest.param(DOCKER, id="docker", marks=pytest.mark.docker),
    ],
)
def test_their_own_checks_hold(python: str, row: Any) -> None:
    config: SandboxConfig = row.config(
        limits=Limits(
            memory_mb=1024, disk_mb=1024, pids=256, output_bytes=10 * 1024 * 1024
        )
    )
    checks = ["--noconftest", "-p", "no:cacheprovider", "-q", "-c", os.devnull]
    printed = run(
        python,
        "-m",
        "pytest",
        *checks,
        "--rootdir",
        str(CHECKS.parent),
        str(CHECKS),
        cwd=CHECKS.parent,
        env={**os.environ, "SELF_CHECK_CONFIG": config.model_dump_json()},
        timeout=380,
    )

    assert re.search(r"^43 passed, 1 xfailed", printed, re.MULTILINE), printed[-2000:]


def test_a_task_runs_in_cells(python: str, tmp_path: Any) -> None:
    printed = run(python, "-c", TASK, cwd=tmp_path, timeout=100)

    assert printed.splitlines()[-1] == ("success ['10001\\n', '10001\\n']")
