"""A user without rights, and an interpreter that every user may read."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ORDINARY_USER = 65_534
SYSTEM_PYTHON = "/usr/bin/python3"

_PRELOADED = """
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
_AS_ORDINARY_USER = """
user, python, *arguments = int(sys.argv[1]), *sys.argv[2:]
os.setgroups([]); os.setresgid(user, user, user); os.setresuid(user, user, user)
"""


def as_ordinary_user(
    program: str,
    *arguments: str,
    before: str = "",
    env: dict[str, str] | None = None,
    timeout: float = 90,
) -> str:
    """Return what a program prints that runs cells once its privileges have gone.

    Args:
        program: Its source, in which `python` is an interpreter that every user may
            read, and `arguments` are those that follow here.
        before: Runs with the privileges. What is used later has to be imported here:
            the checkout, or the interpreter, may be private.
        env: Its environment; default that of this process.
        timeout: Seconds that it may take.
    """
    source = _PRELOADED + before + _AS_ORDINARY_USER + program
    done = subprocess.run(
        [sys.executable, "-c", source, str(ORDINARY_USER), SYSTEM_PYTHON, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env=env,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def need_system_python() -> None:
    """Skip unless there is an interpreter that every user may read."""
    if not Path(SYSTEM_PYTHON).exists():
        pytest.skip(f"there is no {SYSTEM_PYTHON}")


def need_users_of_cells() -> None:
    """Skip unless `confined` cells of that interpreter have users of their own."""
    if os.geteuid() != 0:
        pytest.skip("only root gives cells users of their own")
    need_system_python()


def need_an_ordinary_user() -> None:
    """Skip unless this process can act as one who reads the packages of the tests."""
    if os.getuid() != 0:
        pytest.skip("only root can act as another user")
    need_system_python()
    for program in (Path(sys.executable), Path(pytest.__file__)):
        for folder in program.parents:
            if not folder.stat().st_mode & stat.S_IXOTH:
                pytest.skip(f"other users cannot enter {folder}")
