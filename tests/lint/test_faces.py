"""What each room shows: its public face."""

from __future__ import annotations

import ast
import importlib
import re
import types
from collections import Counter
from pathlib import Path
from typing import TypeGuard

import pytest

from ..support.paths import ROOT, TESTS
from ..support.project.modules import modules_of

pytestmark = pytest.mark.lint

ROOMS = [
    path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent != TESTS
]
SPI = [f"{path.parent.name}.spi" for path in ROOT.glob("*/spi.py")]
"""What other rooms and extensions need beside the faces."""

MOST = 200
"""Public names of all faces. Adding one is a decision: others will rely on it."""


def shown_by(room: str) -> list[str]:
    return list(vars(importlib.import_module(f"toolcell.{room}")).get("__all__", []))


def test_faces_are_sorted_complete_and_nothing_more() -> None:
    wrong = []
    for room in [*ROOMS, *SPI]:
        face, shown = importlib.import_module(f"toolcell.{room}"), shown_by(room)
        assert face.__file__, "the installed package is stale: pip install -e . again"
        for name in shown:
            getattr(face, name)  # some are loaded when they are asked for
        public = {
            name
            for name, value in vars(face).items()
            if not name.startswith("_") and not isinstance(value, types.ModuleType)
        }
        wrong += [f"{room}: {name}" for name in sorted(public ^ set(shown))]
        if shown != sorted(set(shown)):
            wrong.append(f"{room}: __all__ is not sorted")
    assert wrong == []


@pytest.mark.promise("LC-01")
def test_public_names_are_few_and_each_on_a_page() -> None:
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.py")]
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in pages)))
    names = [name for room in ROOMS for name in shown_by(room)]

    assert len(names) <= MOST
    assert [name for name in names if name not in words] == []
    for module in SPI:
        twice = {*shown_by(module)} & {*shown_by(module.removesuffix(".spi"))}
        assert not twice


@pytest.mark.promise("RL-22")
def test_no_public_name_is_a_dead_declaration() -> None:
    """A test names it, or code beyond its definition, whose tests then need it."""
    own = Path(__file__)
    tests = [path for path in TESTS.rglob("*.py") if path != own]
    faces = ("__init__.py", "spi.py")
    modules = [path for path in modules_of(*ROOMS) if path.name not in faces]
    tested, spoken = (
        Counter(word for path in paths for word in re.findall(r"\w+", path.read_text()))
        for paths in (tests, modules)
    )
    names = [name for room in [*ROOMS, *SPI] for name in shown_by(room)]

    assert [name for name in names if not tested[name] and spoken[name] < 2] == []


def test_faces_hold_only_imports() -> None:
    allowed = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign)
    assignments: tuple[list[str], ...] = ([], ["__all__"], ["__all__", "__getattr__"])
    wrong = []
    for room in [*ROOMS, *SPI]:
        file = importlib.import_module(f"toolcell.{room}").__file__
        assert file is not None
        nodes = [
            inner
            for node in ast.parse(Path(file).read_text()).body
            for inner in (node.body if is_for_types(node) else [node])
        ]
        wrong += [
            f"{room}: line {node.lineno}"
            for node in nodes
            if not isinstance(node, allowed)
        ]
        names = [ast.unparse(n.targets[0]) for n in nodes if isinstance(n, ast.Assign)]
        if names not in assignments:
            wrong.append(f"{room}: assigns {names}")
    assert wrong == []


def is_for_types(node: ast.stmt) -> TypeGuard[ast.If]:
    """Say whether it holds the imports of a lazy face, which type checkers read."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "typing.TYPE_CHECKING"
