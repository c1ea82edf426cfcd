"""Exit codes, signals and kept output of a process, in the terms of results."""

from __future__ import annotations

import os
import signal

from .status import Status

MEMORY_KILL = "meanwhile a process of the cell was ended for its memory"
"""The warning of a run or command that did not end by it, as its child may have."""


def exit_of(wait_status: int) -> tuple[int | None, int | None]:
    """Return the exit code and the signal number of a wait status; one is None."""
    if os.WIFSIGNALED(wait_status):
        return None, os.WTERMSIG(wait_status)
    return os.WEXITSTATUS(wait_status), None


def status_of_signal(number: int) -> Status:
    """Return the status of a program, or a command, that a signal ended.

    The same holds for both: SIGKILL is `killed`, SIGXCPU is `cpu_limit`, any other is
    `crashed`, also one that asks a process to end, such as SIGTERM.
    """
    if number == signal.SIGXCPU:
        return "cpu_limit"
    return "killed" if number == signal.SIGKILL else "crashed"


def signal_name(number: int | None) -> str | None:
    """Return the name of a signal, such as `SIGSEGV`; None for none."""
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def signal_number(name: str) -> int:
    """Return the number of a signal that `signal_name` named."""
    # Real-time signals have numbers alone, but for the first and the last.
    number = name.removeprefix("SIG")
    return int(number) if number.isdigit() else signal.Signals[name]


def kept_text(head: bytes | bytearray, tail: bytes | bytearray, dropped: int) -> str:
    """Return a stream as text, with a line for the bytes dropped from its middle.

    What is not UTF-8 is replaced.
    """
    if not dropped:
        return (head + tail).decode("utf-8", "replace")
    start, end = (part.decode("utf-8", "replace") for part in (head, tail))
    return f"{start}\n[... {dropped} bytes left out ...]\n{end}"
