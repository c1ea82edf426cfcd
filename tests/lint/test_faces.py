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
from ..support.project.public_names import FACES

pytestmark = pytest.mark.lint


def shown_by(room: str) -> list[str]:
    return list(vars(importlib.import_module(f"toolcell.{room}")).get("__all__", []))


def test_faces_are_sorted_complete_and_nothing_more() -> None:
    wrong = []
    for room in FACES:
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
def test_public_faces_are_small_and_known() -> None:
    """Adding a name is a decision: others will rely on it."""
    wrong = [
        f"{room}: {name}"
        for room, known in FACES.items()
        for name in sorted(set(shown_by(room)) ^ set(known.split()))
    ]
    assert wrong == []
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} <= {
        *FACES,
        "tests",
    }


@pytest.mark.promise("RL-22")
def test_no_public_name_is_a_dead_declaration() -> None:
    """A test names it, or code beyond its definition, whose tests then need it."""
    own = Path(__file__)
    tests = [path for path in TESTS.rglob("*.py") if path != own]
    modules = [path for path in modules_of(*FACES) if path.name != "__init__.py"]
    tested, spoken = (
        Counter(word for path in paths for word in re.findall(r"\w+", path.read_text()))
        for paths in (tests, modules)
    )
    names = " ".join(FACES.values()).split()

    assert [name for name in names if not tested[name] and spoken[name] < 2] == []


def test_faces_hold_only_imports() -> None:
    allowed = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign)
    assignments: tuple[list[str], ...] = ([], ["__all__"], ["__all__", "__getattr__"])
    wrong = []
    for room in FACES:
        nodes = [
            inner
            for node in ast.parse((ROOT / room / "__init__.py").read_text()).body
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
