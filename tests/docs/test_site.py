"""The documentation as a site: no warning, and no public name without a docstring."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import get_args

import griffe
import pytest

from toolcell.guard.spi import Reason

from ..support.paths import ROOT

ROOMS = ("sandbox", "guard", "tools", "flow", "cluster", "host", "core")


def test_the_guard_explains_every_reason_of_a_refusal() -> None:
    page = (ROOT / "docs/guard.md").read_text()
    table = page.partition("| reason of a refusal |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", table, re.M)
    named = [name for cell in cells for name in re.findall("`([a-z_]+)`", cell)]

    assert sorted(named) == sorted(set(get_args(Reason)) - {"allowed"})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the site, built with warnings as errors."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.timeout(900)
def test_the_site_has_every_page_and_every_public_name(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs") for path in ROOT.glob("docs/**/*.md")}
    assert all((site / page).with_suffix(".html").exists() for page in pages)
    for room in ROOMS:
        text = (site / f"reference/{room}.html").read_text()
        for name in public(room):
            assert f'id="toolcell.{room}.{name}"' in text, f"{room}.{name}"


@pytest.mark.timeout(900)
def test_no_page_asks_another_server_for_anything(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        for start in ('<script src="http', '<link rel="stylesheet" href="http'):
            assert start not in text, page.name


@pytest.mark.promise("D15")
@pytest.mark.timeout(900)
def test_the_search_finds_macos(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text())

    assert "macos.html" in {page["location"] for page in index["docs"]}


@pytest.mark.promise("D16")
@pytest.mark.timeout(900)
def test_the_site_looks_like_the_console_and_begins_with_run(site: Path) -> None:
    static = ROOT / "host/console/static"
    colour = re.search(
        r"--accent: light-dark\((#\w+)", (static / "console.css").read_text()
    )
    reference = (site / "reference/sandbox.html").read_text()

    assert (site / "images/icon.svg").read_bytes() == (static / "icon.svg").read_bytes()
    assert colour is not None
    assert colour[1] in (site / "site.css").read_text()
    assert re.findall(r'id="(toolcell\.sandbox\.\w+)"', reference)[0].endswith(".run")


@pytest.fixture(scope="module")
def rooms(site: Path) -> griffe.Object:
    """Return the packages as the site reads them, with aliases resolved."""
    loader = griffe.GriffeLoader(search_paths=[ROOT / "build/packages"])
    package = loader.load("toolcell")
    loader.resolve_aliases(implicit=True)
    assert isinstance(package, griffe.Object)
    return package


@pytest.mark.timeout(900)
@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_has_a_docstring(room: str, rooms: griffe.Object) -> None:
    face = {name: target(rooms[room][name]) for name in public(room)}
    promised = {
        method
        for each in [*face.values(), *provided(rooms[room])]
        if isinstance(each, griffe.Class) and "Protocol" in map(str, each.bases)
        for method, member in each.members.items()
        if member.docstring
    }
    bare = [name for name, each in face.items() if each.docstring is None]
    for name, each in face.items():
        if isinstance(each, griffe.Class):
            bare += [f"{name}.{method}" for method in bare_methods(each, promised)]

    assert bare == []


def bare_methods(found: griffe.Class, promised: set[str]) -> Iterator[str]:
    """Yield public methods without a docstring, of their own or of what they fulfil."""
    bases = found.mro()
    for name, member in found.members.items():
        if name.startswith("_") or not member.is_function or member.docstring:
            continue
        if name not in promised and not any(name in base.members for base in bases):
            yield name


def provided(room: griffe.Object) -> list[griffe.Object]:
    """Return what a room gives to others, whose methods its names may fulfil."""
    if (spi := room.members.get("spi")) is None:
        return []
    return [target(spi[name]) for name in public(f"{room.name}.spi")]


def target(found: griffe.Object | griffe.Alias) -> griffe.Object:
    return found.final_target if isinstance(found, griffe.Alias) else found


def public(room: str) -> list[str]:
    """Return `__all__` of a room."""
    names: list[str] = import_module(f"toolcell.{room}").__all__
    return sorted(names)
