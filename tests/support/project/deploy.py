"""The folder `deploy/`, and programs that judge what is in it."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from ..paths import ROOT

DEPLOY = ROOT / "deploy"


def program(name: str) -> str:
    """Return the path of a program that CI has to have."""
    found = shutil.which(name)
    if found is None:
        assert "CI" not in os.environ, f"{name} is missing"
        pytest.skip(f"{name} is not installed")
    return found


def ran(*command: str) -> str:
    """Run a program that has to succeed; return its output."""
    done = subprocess.run(command, capture_output=True, text=True)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    return output
