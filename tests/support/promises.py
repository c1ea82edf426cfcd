"""The registry of promises, and the tests that name them."""

from __future__ import annotations

import ast
import functools
import tomllib

from .paths import ROOT, TESTS, files_of_tests

REGISTRY = TESTS / "promises.toml"


def promises() -> dict[str, str]:
    """Return each promise by its id, with why it has no test, or "" if it has one."""
    tables = tomllib.loads(REGISTRY.read_text())
    rows = [row for table in tables.values() for row in table.items()]
    found = {id_: "" if isinstance(row, str) else row["open"] for id_, row in rows}
    assert len(found) == len(rows), "an id stands twice"
    return found


@functools.cache
def named_by_tests() -> dict[str, list[str]]:
    """Return the tests that name each promise: `tests/FILE.py::TEST`, or the file."""
    found: dict[str, list[str]] = {}
    for path in files_of_tests():
        for node in ast.parse(path.read_text()).body:
            name = getattr(node, "name", "")
            place = "::".join(filter(None, [str(path.relative_to(ROOT)), name]))
            for id_ in _named_by(node):
                found.setdefault(id_, []).append(place)
    return found


def _named_by(node: ast.stmt) -> list[str]:
    return [
        id_
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) == "pytest.mark.promise"
        for ids in call.args
        for id_ in ast.literal_eval(ids).split()
    ]
