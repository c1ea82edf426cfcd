"""Unmodified clients of E2B work: Python and JavaScript."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from ...conftest import DOCKER, missing, why_no_docker
from .served_sandboxes import served

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

CLIENTS = Path(__file__).parent / "clients"
LIMITS = """
[sandbox.limits]
memory_mib = 1024
disk_mib = 512
pids = 256
wall_seconds = 60.0
output_bytes = 10485760
"""


def installed(environment: str) -> Path:
    """Return the folder of some clients; skip without it."""
    folder = Path(os.environ.get("TOOLCELL_E2B_CLIENTS", "-")) / environment
    if not folder.is_dir():
        missing(
            f"TOOLCELL_E2B_CLIENTS names no folder with {environment}: "
            "clients/install FOLDER makes what is missing"
        )
    return folder


async def run(folder: Path, *command: str, **sandbox: Any) -> str:
    """Run a client against a server; return what it printed, of a success."""
    async with served(folder, settings=LIMITS, **sandbox) as service:
        environ = {
            **os.environ,
            "E2B_API_KEY": service.keys["a"],
            "E2B_API_URL": service.url,
            "E2B_SANDBOX_URL": service.url,
        }
        done = await anyio.to_thread.run_sync(
            lambda: subprocess.run(
                command,
                env=environ,
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    ("environment", "program"),
    [
        ("oldest", "commands_and_files.py"),
        ("newest", "commands_and_files.py"),
        ("newest", "code.py"),
        ("newest", "lifecycles.py"),
        ("oldest-code", "code.py"),
    ],
)
async def test_the_python_sdks_work(
    tmp_path: Path, environment: str, program: str
) -> None:
    python = installed(environment) / "bin/python"

    assert await run(tmp_path, str(python), str(CLIENTS / program)) == "done\n"


@pytest.mark.docker
@pytest.mark.parametrize("program", ["commands_and_files.py", "code.py"])
async def test_the_python_sdks_work_on_docker(tmp_path: Path, program: str) -> None:
    if why := why_no_docker(None):
        missing(why)
    python = str(installed("newest") / "bin/python")

    printed = await run(tmp_path, python, str(CLIENTS / program), **DOCKER.options)

    assert printed == "done\n"


@pytest.mark.parametrize("environment", ["node", "oldest-node"])
async def test_the_javascript_sdks_work(tmp_path: Path, environment: str) -> None:
    folder = str(installed(environment))
    program = str(CLIENTS / "javascript.mjs")

    assert await run(tmp_path, "node", program, folder) == "done\n"


@pytest.mark.full
async def test_langchains_tests_of_e2b_hold(tmp_path: Path) -> None:
    """These are LangChain's 86 standard tests of a sandbox, and two of its provider."""
    python = installed("langchain") / "bin/python"
    sources = installed("langchain-e2b-sources")
    suite = [
        str(sources / "tests/integration_tests"),
        "-c",
        f"{sources}/pyproject.toml",
    ]

    printed = await run(
        tmp_path, str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *suite
    )

    assert re.search(r"^88 passed", printed, re.MULTILINE), printed[-2000:]
