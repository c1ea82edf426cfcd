"""Every public name of the room is used by a test."""

from __future__ import annotations

import ast

from toolcell import flow
from toolcell.flow import spi

from ..support.paths import TESTS


def test_every_public_name_is_used_by_a_test() -> None:
    folders = ("flow", "host", "support")
    files = [path for folder in folders for path in (TESTS / folder).rglob("*.py")]
    used = {
        name.id if isinstance(name, ast.Name) else name.attr
        for path in files
        for name in ast.walk(ast.parse(path.read_text()))
        if isinstance(name, ast.Name | ast.Attribute)
    }

    assert sorted({*vars(flow)["__all__"], *vars(spi)["__all__"]} - used) == []
