"""Ruff, mypy, and what docstrings may not begin with."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..support.paths import ROOT

pytestmark = [pytest.mark.lint, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]],
    ids=" ".join,
)
def test_the_code_passes(command: list[str]) -> None:
    # mypy reads modules behind the faces by stubs that git does not keep.
    subprocess.run([sys.executable, ROOT / "typings" / "generate.py"], check=True)
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
    )

    assert done.returncode == 0, done.stdout + done.stderr


ROOMS = ("core", "sandbox", "cluster", "guard", "tools", "flow", "host", "providers")
OTHERS = ("benchmarks", "docs", "entry", "examples", "images")

RELATIVE = ("Who", "What", "Whether", "How", "Where", "When", "That", "Which", "Why")


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of a file, those of attributes included, with lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                yield node.lineno, node.value.value


def is_headless(text: str) -> bool:
    return re.match(rf"\s*({'|'.join(RELATIVE)})\b", text) is not None


@pytest.mark.parametrize("room", [*ROOMS, *OTHERS])
def test_no_docstring_begins_with_a_clause_without_its_noun(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    headless = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in files
        for line, text in docstrings(path)
        if is_headless(text)
    ]

    assert files
    assert not headless


def test_a_clause_without_its_noun_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.py"
    page.write_text(
        '"""What it is."""\nclass A:\n    x = 1\n    """Whether."""\n'
        '    def f(self):\n        """Return what it is."""\n'
    )

    found = [line for line, text in docstrings(page) if is_headless(text)]

    assert found == [1, 4]


WORDS = {
    r"an? [\w`-]+ of (its|their|your) own": "its own …, a separate …",
    "came to something": "produced",
    "hears?|heard": "receives, learns of",
    "lives under": "has",
    "look-ups?": "lookup",
    "(it|address|alone|client|escape|line|log|URL) is (?-i:none)": "is not valid",
    "(asks?|for|to|by|is|up|lets|names|reaches|stops) nobody|nobody's": "no one",
    "nobody is": "no one is",
    "none of utf": "not UTF",
    "than may be": "than allowed",
    "tells? of|told of|(is|are|was|were) told": "reports, publishes; gets, learns",
    "to be had": "available",
    "unasked": "by itself",
    "what they are at": "their state",
    "nonsense": "the protocol is broken, and by what",
    "wish": "request",
}
"""Words that are ours and not the field's, and what is said in place of them."""


def test_the_words_are_those_of_the_field() -> None:
    ours = re.compile(rf"\b({'|'.join(WORDS)})(es)?\b", re.I)
    files = [
        path
        for room in (*ROOMS, *OTHERS)
        for kind in ("*.py", "*.md", "*.html")
        for path in (ROOT / room).rglob(kind)
    ]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(files)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if ours.search(line)
    ]

    assert found == []
