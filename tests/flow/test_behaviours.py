"""Every public name of the room is used by a test."""

from __future__ import annotations

import ast

from ..support.paths import TESTS
from ..support.project.public_names import FACES


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
