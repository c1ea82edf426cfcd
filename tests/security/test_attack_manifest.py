"""Every row of the attack table is claimed by a test or said to be out of scope."""

from __future__ import annotations

import re

import pytest

from ..support.attacks.table import claimed_rows, known_rows, required_rows
from ..support.paths import ROOT

pytestmark = pytest.mark.lint

HEADING = "Attack rows that are out of scope"
DOCUMENT = ROOT / "docs" / "security.md"


def excused_rows() -> set[int]:
    """Return the rows that docs/security.md says are out of scope, and why."""
    section = DOCUMENT.read_text().split(f"## {HEADING}")[1].split("\n## ")[0]
    rows = set()
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) >= 5 and re.fullmatch(r"[\d, ]+", cells[1]):
            assert cells[2] and cells[3], f"no reason or no advice: {line}"
            rows |= {int(row) for row in cells[1].split(",")}
    return rows


def test_every_row_is_tested_or_excused() -> None:
    open_rows = required_rows() - claimed_rows().keys() - excused_rows()

    assert sorted(open_rows) == []


def test_no_row_is_both_tested_and_excused() -> None:
    assert sorted(claimed_rows().keys() & excused_rows()) == []


def test_no_row_is_unknown() -> None:
    known = known_rows().keys()

    assert sorted(claimed_rows().keys() - known) == []
    assert sorted(excused_rows() - known) == []
    assert len(required_rows()) > 110


def test_marks_are_on_tests() -> None:
    tests = [name for names in claimed_rows().values() for name in names]

    assert [name for name in tests if "::test_" not in name] == []
