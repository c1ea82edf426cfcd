"""Each framework does what its script says in a cell, and the guard refuses a part."""

from __future__ import annotations

import os

import pytest

from ..support.paths import ROOT
from .environment import run

PRINTED = {
    "deepagents_agent": ["execute: hello", "execute: a rule denies 'exec'", "Done."],
    "dspy_program": ["answer: 42", "refused: a rule denies 'run_python'"],
    "openai_agents_sandbox": [
        "exec_command: hello /workspace",
        "exec_command: a rule denies 'exec'",
        "Done.",
    ],
    "pydantic_ai_agent": [
        "asked: rm answer && echo gone",
        "42",
        "a rule denies 'write_file'",
        "gone",
        "Done.",
    ],
    "smolagents_agent": [
        "answer: 42",
        "refused: toolcell_cell.program.host_tools.ToolError: "
        "no rule allows 'order' with these arguments",
    ],
    "swe_rex_shell": [
        "0: ",
        "0: /tmp toolcell",
        "CallRefusedError: a rule denies 'exec'",
    ],
    "verifiers_rollout": [
        "errors: []",
        "rewards: {'right': Reward(score=1.0, weight=1.0)}",
        "refused: no rule allows 'read_file' with these arguments",
    ],
}
OWN = {"verifiers_rollout": "verifiers"}
"""The examples whose framework has an environment of its own."""


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_does_what_it_says(name: str) -> None:
    path = ROOT / "examples" / "providers" / f"{name}.py"

    quiet = {**os.environ, "SWE_REX_LOG_STREAM_LEVEL": "ERROR"}

    frameworks = OWN.get(name, "providers")
    printed = run(str(path), frameworks=frameworks, timeout=280, env=quiet)

    assert printed.splitlines() == PRINTED[name]
