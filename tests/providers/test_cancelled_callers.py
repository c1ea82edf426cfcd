"""A framework that gives up waiting ends its own command, and nothing else."""

from __future__ import annotations

import pytest

from .environment import HERE, run

pytestmark = pytest.mark.promise("C1")
FRAMEWORKS = ["deepagents", "pydantic-ai", "swe-rex", "openai-agents"]


def test_a_frameworks_caller_costs_its_own_command_alone() -> None:
    printed = run(str(HERE / "cancelled_check.py"), timeout=280)

    kept = r"CancelledError [42, 'kept\n']"
    assert printed.splitlines() == [f"{name} {kept}" for name in FRAMEWORKS]
