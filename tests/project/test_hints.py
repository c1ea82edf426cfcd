"""Every error says what to do about it.

The tree of sources is read: whoever raises an error gives a hint, or its class has one.
Only a message that says so itself comes with `hint=None`.
"""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcell.core import CellLostError, ErrorInfo, StoreUnavailableError, ToolcellError
from toolcell.core.text.install_hint import install_hint

from ..support.paths import ROOT

TREE = importlib.import_module(ToolcellError.__module__)
NEEDS_HINT = {
    name
    for name, value in vars(TREE).items()
    if isinstance(value, type)
    and issubclass(value, ToolcellError)
    and value.default_hint is None
}
ROOMS = ("core", "sandbox", "cluster", "guard", "tools", "flow", "host")
# Its `ToolError` is another, of programs in cells.
NOT_OURS = ROOT / "sandbox" / "cell"


def sources() -> Iterator[Path]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if not path.is_relative_to(NOT_OURS):
                yield path


def made_without_hint(source: str) -> list[int]:
    """Return the lines that make an error without a hint."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            given = {keyword.arg for keyword in node.keywords}
            if name in NEEDS_HINT and not given & {"hint", None}:
                found.append(node.lineno)
    return found


def test_every_error_is_made_with_a_hint() -> None:
    without = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources()
        for line in made_without_hint(path.read_text())
    ]

    assert not without


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("raise ConfigError('no')", [1]),
        ("x = 1\nerror = core.InvalidInputError('no', details={})", [2]),
        ("raise ConfigError('no', hint='do so')", []),
        ("raise ConfigError('no', **told)", []),
        ("raise CellLostError('gone')", []),
        ("raise ValueError('no')", []),
    ],
)
def test_errors_without_a_hint_are_found(source: str, lines: list[int]) -> None:
    assert made_without_hint(source) == lines


@pytest.mark.parametrize("kind", [CellLostError, StoreUnavailableError])
def test_a_hint_of_the_class_is_told_once_and_gives_way_to_a_better_one(
    kind: type[ToolcellError],
) -> None:
    error, better = kind("gone"), kind("gone", hint="wait")

    assert error.hint == kind.default_hint
    assert str(error) == f"gone ({kind.default_hint})"
    assert ErrorInfo.of(error).hint == kind.default_hint
    assert str(better) == "gone (wait)"


INDEX_INSTALL = re.compile(r"\b(pipx?|uv) (tool )?install\b[^\n`&|;:]*\btoolcell\b")


def test_no_text_installs_from_an_index_that_has_no_toolcell() -> None:
    texts = [*sources(), ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in texts
        for match in INDEX_INSTALL.finditer(path.read_text())
    ]

    assert not found
    assert INDEX_INSTALL.search("pip install 'toolcell[mcp]'")
    assert INDEX_INSTALL.search("uv tool install toolcell")
    assert not INDEX_INSTALL.search(install_hint("mcp"))


def test_each_extra_that_a_hint_names_is_one_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {
        extra
        for path in sources()
        for extra in re.findall(r'install_hint\("(\w+)"\)', path.read_text())
    }

    assert named and named <= project["optional-dependencies"].keys()
