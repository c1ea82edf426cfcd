"""How large files, folders, functions and classes may grow."""

from __future__ import annotations

import ast
import importlib
import types
from collections.abc import Iterator

import pytest

from ..support.paths import ROOT
from ..support.project.modules import CELL, dotted, modules_of

pytestmark = pytest.mark.lint

ROOMS = ("core", "sandbox", "cluster", "guard", "tools", "flow", "host", "images")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_FILES = 20
"""In one folder."""

MAX_METHODS = 25
"""Of one class and its bases, without those that Python calls."""

MAX_CONSOLE_BYTES = 50 * 1024
"""Of all style sheets and scripts that a page of the console loads."""

LARGER = {
    "toolcell.cluster.driver.session.ClusterSession": 33,
    "toolcell.flow.steps.subgraph.GraphTask": 31,
    "toolcell.flow.stores.adapter._Adapter": 36,
    "toolcell.flow.stores.memory.MemoryCheckpointer": 28,
    "toolcell.flow.stores.redis.RedisCheckpointer": 34,
    "toolcell.flow.stores.sqlite.SQLiteCheckpointer": 31,
    "toolcell.guard.stores.sqlite.SQLiteStore": 31,
    "toolcell.sandbox.sessions.interface.SandboxSession": 32,
    "toolcell.sandbox.sessions.session.Session": 35,
}
"""Classes of before there was a limit, and what they may have."""


def test_the_console_stays_light() -> None:
    static = ROOT / "host/console/static"
    sizes = {
        path.name: path.stat().st_size
        for path in static.rglob("*")
        if path.suffix in (".css", ".js")
    }

    assert sizes.keys() >= {"console.css", "console.js"}
    assert sum(sizes.values()) <= MAX_CONSOLE_BYTES, sizes


def test_files_and_functions_stay_small() -> None:
    wrong = []
    for path in modules_of(*ROOMS, "providers", "benchmarks", "tests"):
        text, name = path.read_text(), path.relative_to(ROOT)
        if (lines := len(text.splitlines())) > MAX_FILE_LINES:
            wrong.append(f"{name}: {lines} lines")
        wrong += [
            f"{name}: {node.name} has {lines} lines"
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (lines := body_lines(node)) > MAX_FUNCTION_LINES
        ]
    assert wrong == []


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its decorators and docstring."""
    first = node.body[0]
    lines = (node.end_lineno or 0) - node.lineno + 1
    if ast.get_docstring(node, clean=False) is not None:
        lines -= (first.end_lineno or 0) - first.lineno + 1
    return lines


def test_folders_stay_small() -> None:
    tops = [ROOT / name for name in (*ROOMS, "providers", "tests", "benchmarks")]
    sizes = {
        folder.relative_to(ROOT).as_posix(): len(list(folder.glob("[!_]*.py")))
        for top in tops
        for folder in (top, *(path for path in top.rglob("*") if path.is_dir()))
    }

    assert {name: size for name, size in sizes.items() if size > MAX_FILES} == {}
    assert len(sizes) > 60


def test_classes_stay_small() -> None:
    sizes = dict(sizes_of_classes())
    larger = {name: size for name, size in sizes.items() if size > MAX_METHODS}

    assert {
        name for name, size in larger.items() if size > LARGER.get(name, 0)
    } == set()
    assert LARGER.keys() <= larger.keys(), "smaller now: take it off the list"
    assert len(sizes) > 500


def sizes_of_classes() -> Iterator[tuple[str, int]]:
    """Yield each class of the rooms with the number of its methods."""
    for path in modules_of(*ROOMS):
        if path.is_relative_to(CELL) or path.name == "__main__.py":
            continue
        module = importlib.import_module(dotted(path))
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == module.__name__:
                yield f"{module.__name__}.{value.__name__}", len(methods_of(value))


def methods_of(made: type) -> set[str]:
    kinds = (types.FunctionType, property, classmethod, staticmethod)
    return {
        name
        for base in made.__mro__
        if base.__module__.startswith("toolcell.")
        for name, value in vars(base).items()
        if isinstance(value, kinds) and not name.startswith("__")
    }
