"""Each behaviour that the room promises has tests, and they exist."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

from ..support.paths import TESTS
from ..support.project.public_names import FACES

COUNT = 48
TABLE = TESTS / "support" / "flow" / "behaviours.toml"


def behaviours() -> dict[str, Any]:
    return tomllib.loads(TABLE.read_text())


def names_in(path: Path) -> set[str]:
    """Return the names of the tests in a file."""
    tree = ast.parse(path.read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {each.name for each in tree.body if isinstance(each, functions)}


def test_each_behaviour_names_tests_that_exist() -> None:
    table = behaviours()
    named = [test for row in table.values() for test in row["tests"]]
    files = {test.partition("::")[0] for test in named}
    known = {
        f"{file}::{name}" for file in files for name in names_in(TESTS / f"{file}.py")
    }

    assert [*table] == [str(number) for number in range(1, COUNT + 1)]
    assert all(row["says"] and row["tests"] for row in table.values())
    assert [test for test in named if test not in known] == []


def test_every_public_name_is_used_by_a_test() -> None:
    folders = ("flow", "host", "support")
    files = [path for each in folders for path in (TESTS / each).rglob("*.py")]
    used = {
        name.id if isinstance(name, ast.Name) else name.attr
        for path in files
        for name in ast.walk(ast.parse(path.read_text()))
        if isinstance(name, ast.Name | ast.Attribute)
    }

    assert sorted(set(FACES["flow"].split()) - used) == []
