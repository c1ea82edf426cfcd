"""Every row of the reference inventory has a test, and every row in a test exists."""

from __future__ import annotations

import pytest

from ..support.requirement_rows import (
    LATER,
    OUT_OF_SCOPE,
    in_inventory,
    known,
    named,
    named_in,
)

pytestmark = pytest.mark.lint


def test_every_row_has_a_test_or_a_reason() -> None:
    open_rows = known().keys() - named().keys() - OUT_OF_SCOPE.keys() - LATER.keys()

    assert sorted(open_rows) == []
    assert len(known()) > 300


def test_every_row_has_a_title() -> None:
    assert known().keys() == in_inventory()


def test_every_row_named_by_a_test_exists() -> None:
    unknown = {row: tests for row, tests in named().items() if row not in known()}

    assert unknown == {}


def test_a_reason_is_for_a_row_that_needs_one() -> None:
    excused = OUT_OF_SCOPE | LATER

    assert excused.keys() <= known().keys()
    assert all(excused.values())
    assert sorted(excused.keys() & named().keys()) == [], "tested, so no longer excused"


def test_names_of_tests_are_read_right() -> None:
    said = named_in("test_streams_lt_33_34_ga_07", "As GR-01 says, LT-7 is no row.")

    assert said == {"LT-33", "LT-34", "GA-07", "GR-01"}
