"""Each statement of docs/security.md is held by a test, or promises nothing."""

from __future__ import annotations

import ast
import tomllib
from typing import Any

import pytest

from ..support.paths import ROOT, TESTS

pytestmark = pytest.mark.lint

TABLE = TESTS / "support" / "security_page.toml"


def statements() -> list[str]:
    """Return the paragraphs, list items and tables of the page, each on one line."""
    found: list[str] = []
    open_block = is_code = False
    for line in (ROOT / "docs" / "security.md").read_text().splitlines():
        if line.startswith("```"):
            is_code, open_block = not is_code, False
        elif is_code or line.startswith("#") or not line.strip():
            open_block = False
        elif open_block and not line.startswith("- "):
            found[-1] += f" {line.strip()}"
        else:
            found.append(line.strip())
            open_block = True
    return found


def claims() -> dict[str, dict[str, Any]]:
    """Return the rows of the table, by the first words of their statements."""
    sections = tomllib.loads(TABLE.read_text()).values()
    return {words: row for section in sections for words, row in section.items()}


def test_every_statement_is_in_the_table_once() -> None:
    known = claims()
    for statement in statements():
        begins = [words for words in known if statement.startswith(words)]
        assert len(begins) == 1, statement[:80]
    for words in known:
        assert any(statement.startswith(words) for statement in statements()), words


def test_every_statement_has_tests_that_exist_or_a_reason() -> None:
    for words, row in claims().items():
        assert row.keys() in ({"tests"}, {"why"}), words
        for test in row.get("tests", ["__init__.py"]):
            name, _, function = test.partition("::")
            assert (TESTS / name).is_file(), test
            defined = {
                getattr(node, "name", "")
                for node in ast.parse((TESTS / name).read_text()).body
            }
            assert function in defined | {""}, test
