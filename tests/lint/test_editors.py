"""Editors understand the packages, though no folder is named toolcell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import missing
from ..support.paths import ROOT

pytestmark = [pytest.mark.lint, pytest.mark.timeout(600)]


def problems(path: Path) -> list[str]:
    """Return what pyright, the checker in VS Code, says of a file: its own settings."""
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
    )
    if not done.stdout.startswith("{"):
        missing(f"pyright could not be fetched: {done.stderr[-300:]}")
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    return [problem["message"] for problem in report["generalDiagnostics"]]


def test_pyright_knows_every_face() -> None:
    assert problems(ROOT / "tests/lint/editor_faces.py") == []


def test_pyright_finds_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "mistake.py"
    path.write_text("from toolcell.sandbox import run\n\nrun(1)\n")

    [found] = problems(path)
    assert "not assignable" in found or "cannot be assigned" in found
