"""A framework that gives up waiting ends its own command, and nothing else."""

from __future__ import annotations

import pytest

from ...support.paths import ROOT
from ..environment import run

pytestmark = [pytest.mark.full, pytest.mark.promise("C1")]
FRAMEWORKS = {
    "providers": [
        *("deepagents", "pydantic-ai", "swe-rex", "openai-agents"),
        *("inspect-ai", "langchain"),
    ],
    "verifiers": ["verifiers"],
    "harbor": ["harbor"],
}
"""By their environment; smolagents and DSPy block their caller's thread."""


@pytest.mark.parametrize("environment", FRAMEWORKS)
def test_a_frameworks_caller_costs_its_own_command_alone(environment: str) -> None:
    printed = run(
        *("-m", f"tests.providers.cancelled.{environment}_check"),
        frameworks=environment,
        cwd=ROOT,
        timeout=280,
    )

    kept = r"CancelledError [42, 'kept\n']"
    names = FRAMEWORKS[environment]
    assert printed.splitlines() == [f"{name} {kept}" for name in names]
