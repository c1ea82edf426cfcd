"""Modules of the rooms, and clean interpreters that import them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..paths import ROOT

CELL = ROOT / "sandbox" / "cell"


def modules_of(*folders: str) -> list[Path]:
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    )


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in ("toolcell", *parts) if part != "__init__")


def fresh_python(script: str, *arguments: str) -> str:
    """Run a script in a clean interpreter, away from the checkout."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
