"""The Python that has the frameworks, and what runs in it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from toolcell.sandbox import Limits, SandboxConfig

from ..conftest import DOCKER, SUBPROCESS, missing
from ..support.paths import ROOT

HERE = ROOT / "tests" / "providers"
BACKENDS = pytest.mark.parametrize(
    "row",
    [
        pytest.param(SUBPROCESS, id="subprocess"),
        pytest.param(DOCKER, id="docker", marks=pytest.mark.docker),
    ],
)


def python_of(frameworks: str) -> str:
    """Return the Python that has frameworks; skip without one.

    Args:
        frameworks: `providers`, or the one that has an environment of its own.
    """
    variable = f"TOOLCELL_{frameworks.upper()}_PYTHON"
    path = os.environ.get(variable)
    if path == "" and frameworks == "harbor":
        pytest.skip("Harbor wants Python 3.12, and this machine has none")
    if not path:
        missing(f"{variable} names no Python with tests/providers/*.txt")
    return path


def suite_config(row: Any, **options: Any) -> SandboxConfig:
    """Return cells that are large enough for the suites of frameworks."""
    limits = Limits(
        memory_mib=1024, disk_mib=1024, pids=256, output_bytes=10 * 1024 * 1024
    )
    config: SandboxConfig = row.config(limits=limits, **options)
    return config


def run(*arguments: str, frameworks: str = "providers", **options: Any) -> str:
    """Run the frameworks' Python; return what it printed, of a success."""
    done = subprocess.run(
        [python_of(frameworks), *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return str(done.stdout)


def run_suite(
    path: Path, config: SandboxConfig, *options: str, **environment: str
) -> str:
    """Run a file of tests there, with pytest and no settings of ours.

    Args:
        path: The file or folder; pytest's root is its folder.
        config: The cells, for the file's own fixtures.
        *options: More arguments of pytest.
        **environment: More variables.
    """
    folder = path if path.is_dir() else path.parent
    apart = ["-p", "no:cacheprovider", "-q", "-c", os.devnull]
    return run(
        *("-m", "pytest", *apart, "--rootdir", str(folder), *options, str(path)),
        cwd=folder,
        env={
            **os.environ,
            **environment,
            "TOOLCELL_SUITE_CONFIG": config.model_dump_json(exclude_defaults=True),
        },
        timeout=380,
    )
