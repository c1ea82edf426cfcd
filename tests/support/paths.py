"""Where the checkout and its tests are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent


def files_of_tests() -> list[Path]:
    """Return every file of tests, in any folder."""
    found = sorted(TESTS.rglob("test_*.py"))
    assert len(found) > 130, "the tests are not where they are looked for"
    return found


README = ROOT / "README.md"


def documents() -> Iterator[Path]:
    """Yield the README, the pages of `docs`, and the other documents of the root."""
    yield README
    yield from sorted((ROOT / "docs").rglob("*.md"))
    for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"):
        if (ROOT / name).exists():
            yield ROOT / name
