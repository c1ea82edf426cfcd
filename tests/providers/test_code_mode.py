"""Agents of other frameworks have code mode, and the guard judges what programs do."""

from __future__ import annotations

import pytest

from .environment import HERE, run

READ = (
    "def price(item: str) -> float: # There is no tool 'refund'."
    " [2.5, ['guard.denied', False], ['guard.denied', False], ['guard.denied', True]]"
)


@pytest.mark.promise("door-7")
def test_an_approved_program_has_no_call_approved_by_that() -> None:
    """Attack: the program of an approved `run_code` makes a call that asks."""
    printed = run(str(HERE / "code_mode_check.py"), timeout=280)

    wrong = "the arguments of run_code do not fit: code: missing, expecte"
    assert printed.splitlines() == [
        "asked: 1",
        f"pydantic-ai: {READ} {wrong} json_invalid []",
        f"openai-agents: {READ} tool.validation tool.validation []",
        f"langchain: {READ} tool.validation []",
    ]
