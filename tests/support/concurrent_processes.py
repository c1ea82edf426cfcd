"""Other processes that begin together."""

import subprocess
import sys

from .guard.patience import PATIENT


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a script that waits for a line, and patiently for files."""
    return subprocess.Popen(
        [sys.executable, "-I", "-c", PATIENT + script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def all_at_once(processes: list[subprocess.Popen[str]]) -> list[str]:
    """Let processes go that wait for a line, and return what they print."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return [process.communicate()[0] for process in processes]
