"""Each row of the design has tests that exist, or says why it has none."""

from __future__ import annotations

import ast
import tomllib

from ..support.paths import TESTS

COUNT = 52
TABLE = TESTS / "support" / "cluster" / "rows.toml"


def test_each_row_names_tests_that_exist() -> None:
    table = tomllib.loads(TABLE.read_text())
    named = {test for row in table.values() for test in row["tests"]}
    known = set()
    for file in {test.partition("::")[0] for test in named}:
        tree = ast.parse((TESTS / f"{file}.py").read_text())
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        known |= {
            f"{file}::{each.name}" for each in tree.body if isinstance(each, kinds)
        }

    assert [*table] == [f"C-{number:02}" for number in range(1, COUNT + 1)]
    assert all(row["says"] for row in table.values())
    assert sorted(named - known) == []
    silent = [
        name for name, row in table.items() if not row["tests"] and not row.get("open")
    ]
    assert silent == []
