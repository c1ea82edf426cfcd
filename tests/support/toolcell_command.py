"""Runs the installed `toolcell` command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..conftest import BackendRow

TOOLCELL = str(Path(sys.executable).with_name("toolcell"))


def toolcell(
    *arguments: str,
    stdin: bytes = b"",
    env: dict[str, str] | None = None,
    seconds: float = 240,
) -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end; output is captured."""
    return subprocess.run(
        [TOOLCELL, *arguments],
        input=stdin,
        capture_output=True,
        timeout=seconds,
        env=env,
        check=False,
    )


def options_of(backend: BackendRow) -> list[str]:
    """Return the options that choose a backend row."""
    return [
        part
        for name in ("backend", "image", "runtime")
        if name in backend.options
        for part in (f"--{name}", str(backend.options[name]))
    ]
