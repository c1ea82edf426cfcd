"""The bundle carries every module of a cell, in packages of any depth."""

from __future__ import annotations

import importlib.util
import marshal
import subprocess
import sys
from pathlib import Path

import pytest

from toolcell.sandbox.backends import cell_bundle
from toolcell.sandbox.cell import folder

from ...support.paths import ROOT


def test_the_bundle_names_every_module_of_a_cell() -> None:
    folder = ROOT / "sandbox" / "cell"
    parts = [
        path.relative_to(folder).with_suffix("").parts for path in folder.rglob("*.py")
    ]
    names = {
        ".".join(("toolcell_cell", *(each for each in part if each != "__init__")))
        for part in parts
    }

    assert cell_bundle.modules().keys() == names
    assert len(names) > 25


def test_a_module_of_a_package_of_the_bundle_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "__init__": "",
        "inner/__init__": "",
        "inner/deep/__init__": "",
        "inner/deep/leaf": "from ...values import ANSWER\nfrom .. import sibling",
        "inner/sibling": "",
        "values": "ANSWER = 42",
        "start": "from .inner.deep import leaf\ndef main(): print(leaf.ANSWER)",
    }.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    spec = importlib.util.spec_from_file_location(
        "toolcell_cell",
        tmp_path / "__init__.py",
        submodule_search_locations=[str(tmp_path)],
    )
    monkeypatch.setattr(cell_bundle, "_package", lambda: spec)
    done = subprocess.run(
        cell_bundle.command(sys.executable, "start"),
        input=cell_bundle.bundle.__wrapped__(),
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert (done.stdout, done.stderr) == (b"42\n", b"")


def test_a_folder_holds_the_modules_of_the_bundle_without_its_path() -> None:
    packed = marshal.loads(cell_bundle.compiled_bundle()[8:])
    place = ROOT / "sandbox" / "cell"
    found = dict(folder.compiled("toolcell_cell", str(place)))

    assert found.keys() == packed.keys()
    for name, code in found.items():
        assert marshal.dumps(code, 2) == marshal.dumps(packed[name], 2)
        assert str(ROOT).encode() not in marshal.dumps(code)


def test_modules_in_an_archive_have_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_loader("toolcell_cell", None, is_package=True)
    monkeypatch.setattr(cell_bundle, "_package", lambda: spec)

    assert cell_bundle.compiled_folder() is None
