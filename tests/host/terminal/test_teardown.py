"""The process of a command ends after its exit functions, and frees nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, sys, threading
{before}
from toolcell.host.terminal.interpreter import skip_teardown

class Kept:
    def __del__(self):
        print("freed")

def work(started):
    started.wait()
    print("thread")

kept, started = Kept(), threading.Event()
with skip_teardown():
    atexit.register(print, "exit function")
    threading.Thread(target=work, args=[started]).start()
    started.set()
    {end}
"""


def ended(end: str, before: str = "") -> tuple[int, list[str], str]:
    """Return the exit code, the output and the last line of the errors of a process."""
    process = subprocess.run(
        [sys.executable, "-E", "-c", SCRIPT.format(end=end, before=before)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return (
        process.returncode,
        process.stdout.splitlines(),
        "".join(process.stderr.splitlines()[-1:]),
    )


@pytest.mark.parametrize(
    ("end", "code"),
    [("sys.exit(7)", 7), ("sys.exit()", 0), ("sys.exit(-1)", 255), ("sys.exit(0)", 0)],
)
def test_exit_functions_run_and_objects_are_left(end: str, code: int) -> None:
    assert ended(end) == (code, ["thread", "exit function"], "")


@pytest.mark.parametrize(
    ("end", "code", "error"),
    [
        ("sys.exit('in words')", 1, "in words"),
        ("raise LookupError('no')", 1, "LookupError: no"),
        ("raise KeyboardInterrupt", -2, "KeyboardInterrupt"),
        ("pass", 0, ""),
    ],
)
def test_other_ends_are_those_of_python(end: str, code: int, error: str) -> None:
    assert ended(end) == (code, ["thread", "exit function", "freed"], error)


def test_exit_functions_of_others_that_came_before_run_too() -> None:
    before = "atexit.register(print, 'profile written')"

    code, output, _ = ended("sys.exit(3)", before)

    assert code == 3
    assert output == ["thread", "exit function", "profile written", "freed"]


def test_output_that_cannot_be_written_is_told_as_python_does() -> None:
    process = subprocess.run(
        ["bash", "-c", '"$0" -E -c "$1" >/dev/full', sys.executable, FULL],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert process.returncode == 120
    assert "No space left on device" in process.stderr


FULL = """
import sys
from toolcell.host.terminal.interpreter import skip_teardown
with skip_teardown():
    print("lost")
    sys.exit(0)
"""
