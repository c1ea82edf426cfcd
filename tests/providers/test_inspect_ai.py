"""Inspect AI finds toolcell, and its own checks of sandboxes hold."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .environment import BACKENDS, HERE, run, run_suite, suite_config

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

GUARDED = """
import anyio
from contextlib import AsyncExitStack
from toolcell.guard import ActionGuard, AgentPolicy, Budget
from toolcell.providers.inspect_ai import ToolcellSandboxEnvironment
from toolcell.sandbox import SandboxConfig

budget = Budget(unit="cpu_ms", limit=1_500, window="day")
policy = AgentPolicy(agent_id="inspect", allow=["exec"], budgets=[budget])
guard = ToolcellSandboxEnvironment.guard = ActionGuard([policy])
"""

CLEANUP = """
async def fail():
    raise OSError("not charged")

async def clean_up():
    closing = AsyncExitStack()
    closing.callback(print, "ended")
    environment = ToolcellSandboxEnvironment(None, closing)
    await environment._held.open()
    environment._session.charge = fail
    environments = {"default": environment}
    await ToolcellSandboxEnvironment.sample_cleanup("t", None, environments, True)

try:
    anyio.run(clean_up)
except* OSError as group:
    print(*group.exceptions)
"""

BURN = """
async def burn():
    config = SandboxConfig(backend="subprocess")
    await ToolcellSandboxEnvironment.task_init("t", config)
    environments = await ToolcellSandboxEnvironment.sample_init("t", config, {})
    environment = environments["default"]
    await environment.exec(["sh", "-c", "while :; do :; done & sleep 0.1"])
    with anyio.fail_after(60):
        while environment._session.session.alive:
            await anyio.sleep(0.1)
    [state] = await guard.limits("inspect", "exec")
    print(int(state.used) >= 1_500)
    try:
        await environment.exec(["true"])
    except PermissionError:
        print("refused")
    await ToolcellSandboxEnvironment.sample_cleanup("t", config, environments, False)
    await ToolcellSandboxEnvironment.task_cleanup("t", config, True)

anyio.run(burn)
"""


@pytest.mark.full
@pytest.mark.timeout(400)
@BACKENDS
def test_their_own_checks_hold(row: Any) -> None:
    printed = run_suite(
        HERE / "inspect_self_check.py", suite_config(row), "--noconftest"
    )

    assert re.search(r"^43 passed, 1 xfailed", printed, re.MULTILINE), printed[-2000:]


def test_a_task_runs_in_cells(tmp_path: Any) -> None:
    printed = run("-c", TASK, cwd=tmp_path, timeout=280)

    assert printed.splitlines()[-1] == ("success ['10001\\n', '10001\\n']")


def test_a_session_ends_though_it_cannot_be_charged() -> None:
    printed = run("-c", GUARDED + CLEANUP, timeout=280)

    assert printed.splitlines() == ["ended", "not charged"]


@pytest.mark.promise("R26")
def test_what_a_command_left_is_charged_without_a_call_and_ends_the_sample() -> None:
    printed = run("-c", GUARDED + BURN, timeout=280)

    assert printed.splitlines() == ["True", "refused"]
