"""A user without rights, and an interpreter that every user may read."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

ORDINARY_USER = 65_534


SYSTEM_PYTHON = "/usr/bin/python3"

PRELOADED = """
import json, os, sys
import anyio, anyio._backends._asyncio
import toolcell.sandbox
from toolcell.sandbox import SandboxConfig, SandboxManager
from toolcell.sandbox.backends import cell_bundle, namespaces
from toolcell.sandbox.client import cell, result_builder
from toolcell.sandbox.machine import host_cgroups
cell_bundle.bundle()
# Its validator is made, and plugins looked for, when it is first used.
SandboxConfig()
"""
"""Begins a program that runs cells once its privileges have gone.

Everything is imported before: the checkout, or the interpreter, may be private.
"""


def need_an_ordinary_user() -> None:
    """Skip unless this process can act as one who reads the packages of the tests."""
    if os.getuid() != 0:
        pytest.skip("only root can act as another user")
    if not Path(SYSTEM_PYTHON).exists():
        pytest.skip(f"there is no {SYSTEM_PYTHON}")
    for program in (Path(sys.executable), Path(pytest.__file__)):
        for folder in program.parents:
            if not folder.stat().st_mode & stat.S_IXOTH:
                pytest.skip(f"other users cannot enter {folder}")
