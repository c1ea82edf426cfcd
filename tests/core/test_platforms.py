"""Where toolcell does not run it says so, in one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.promise("N17")

PROGRAM = """
import sys
# What Windows does not have.
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
import {module}
"""


@pytest.mark.parametrize("room", ["core", "guard", "tools", "sandbox", "host"])
def test_an_import_on_windows_says_what_to_do(room: str) -> None:
    program = PROGRAM.format(module=f"toolcell.{room}")
    if room == "host":
        program += "\ntoolcell.host.Host"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith("ImportError: toolcell runs on Linux")
    assert "WSL 2" in last
    assert "No module named" not in done.stderr


def test_the_doctor_gives_no_advice_for_linux_elsewhere() -> None:
    program = """
import sys, anyio, toolcell.sandbox.backends.namespaces
from toolcell.sandbox.admin import doctor
sys.platform = "darwin"
checks, level = anyio.run(doctor._subprocess_checks, doctor.SandboxConfig())
print(level, {(check.ok, check.fix) for check in checks})
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    fix = "install and start Docker, or set DOCKER_HOST"
    assert done.stdout == f"None {{(False, {fix!r})}}\n", done.stderr
