"""Where the checkout and its tests are."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent


def files_of_tests() -> list[Path]:
    """Return every file of tests, in any folder."""
    found = sorted(TESTS.rglob("test_*.py"))
    assert len(found) > 130, "the tests are not where they are looked for"
    return found
