"""Every promise of docs/sessions.md has a test, and every such test a promise."""

from __future__ import annotations

import ast
import re

import pytest

from ..support.paths import ROOT, TESTS

pytestmark = pytest.mark.lint

SUITE = (
    "sandbox/test_cancelled_callers",
    "sandbox/test_session_cell",
    "sandbox/test_session_state",
    "sandbox/client/test_workdir",
    "sandbox/client/test_hostile_files",
    "sandbox/scheduling/test_pool",
    "sandbox/config/test_mounts",
    "sandbox/config/test_secrets",
)
"""The test files on sessions, files, streams, the pool, mounts and secrets."""


def promises() -> dict[str, str]:
    """Return each promise by its id."""
    text = (ROOT / "docs" / "sessions.md").read_text().split("## Promises")[1]
    return dict(re.findall(r"^\| (P-\d\d) \| (.+) \|$", text, re.M))


def kept() -> dict[str, list[str]]:
    """Return the promises that each test of the suite names."""
    found = {}
    for part in SUITE:
        path = TESTS / f"{part}.py"
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            marks = [ast.unparse(each) for each in node.decorator_list]
            named = [each for each in marks if each.startswith("pytest.mark.promise(")]
            if node.name.startswith("test_"):
                found[f"{part}::{node.name}"] = re.findall(r"P-\d\d", " ".join(named))
    return found


def test_every_promise_has_a_test() -> None:
    named = {promise for ids in kept().values() for promise in ids}

    assert sorted(promises().keys() - named) == []
    assert sorted(named - promises().keys()) == []
    assert len(promises()) > 30


def test_every_test_has_a_promise() -> None:
    assert [test for test, ids in kept().items() if not ids] == []
    assert len(kept()) > 80


def test_promises_are_numbered_in_order() -> None:
    assert [*promises()] == [f"P-{n:02}" for n in range(1, len(promises()) + 1)]
