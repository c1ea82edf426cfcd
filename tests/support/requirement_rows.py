"""The rows of the reference inventory: which there are, and which tests name them.

A test names rows in its own name (`..._gr_24`, `..._lt_33_34` for two of one system)
or in its docstring (`GR-24`). `requirements.toml` says what each row asks for.
"""

from __future__ import annotations

import ast
import re
import tomllib

from ..conftest import missing
from .paths import ROOT, TESTS, files_of_tests

TITLES = TESTS / "support" / "requirements.toml"
INVENTORY = ROOT.parent / "shared" / "spec" / "reference_systems.md"
SYSTEMS = ("LT", "LC", "GA", "GR", "OR", "RG", "RL", "RA", "RO", "A", "X")
_ROW = re.compile(rf"\| (({'|'.join(SYSTEMS)})-\d\d) \|")
_IN_NAME = re.compile(rf"_({'|'.join(SYSTEMS)})((?:_\d\d)+)(?=_|$)", re.I)
_IN_TEXT = re.compile(rf"\b(?:{'|'.join(SYSTEMS)})-\d\d\b")

OUT_OF_SCOPE = {
    "LC-19": "retrieval is no part of this project",
    "OR-21": "agent loops are no part of this project",
}
"""Rows that no test will ever name, and why."""

LATER: dict[str, str] = {}
"""Rows of parts that are not built yet."""


def known() -> dict[str, str]:
    """Return what each row asks for, by its id."""
    return tomllib.loads(TITLES.read_text())


def in_inventory() -> set[str]:
    """Return the rows of the inventory that the titles were taken from."""
    if not INVENTORY.is_file():
        missing(f"the inventory of reference systems is not at {INVENTORY}")
    return {
        row[1]
        for line in INVENTORY.read_text().splitlines()
        if (row := _ROW.match(line))
    }


def named_in(name: str, text: str) -> set[str]:
    """Return the rows that a test's name and its docstring speak of."""
    rows = set(_IN_TEXT.findall(text))
    for system, numbers in _IN_NAME.findall(name):
        rows |= {f"{system.upper()}-{each}" for each in numbers.split("_")[1:]}
    return rows


def named() -> dict[str, set[str]]:
    """Return each row that a test names, with those tests."""
    found: dict[str, set[str]] = {}
    for path in files_of_tests():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name.startswith("test_"):
                for row in named_in(node.name, ast.get_docstring(node) or ""):
                    found.setdefault(row, set()).add(f"{path.name}::{node.name}")
    return found
