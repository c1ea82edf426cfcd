"""Every finding has a test that proves it closed, and every such test a finding."""

from __future__ import annotations

import ast

import pytest

from ..support.findings import FINDINGS
from ..support.paths import ROOT, files_of_tests

pytestmark = pytest.mark.lint

DOCUMENTED = {"A28": "**Hash seed and addresses.**"}
"""What is not closed, and where docs/security.md says so."""


def proven() -> dict[str, list[str]]:
    """Return the tests that name each finding by their marks."""
    found: dict[str, list[str]] = {}
    for path in files_of_tests():
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) == "pytest.mark.finding"
            ):
                for id_ in node.args:
                    place = f"{path.name}:{node.lineno}"
                    found.setdefault(ast.literal_eval(id_), []).append(place)
    return found


def test_every_finding_has_a_test_or_is_documented() -> None:
    known = (ROOT / "docs" / "security.md").read_text()

    assert sorted(FINDINGS.keys() - proven().keys()) == sorted(DOCUMENTED)
    assert all(heading in known for heading in DOCUMENTED.values())


def test_no_test_names_a_finding_that_nobody_knows() -> None:
    assert sorted(proven().keys() - FINDINGS.keys()) == []
    assert len(FINDINGS) > 50
