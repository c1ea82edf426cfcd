"""The standard streams of a program, buffered as plain Python's are at a terminal.

Each line of what is printed leaves at once, so it is not lost in whatever way the
program ends. The beginning of a line leaves before the supervisor kills, and before a
fork.
"""

from __future__ import annotations

import io
import os
import sys

from ..kernel import signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_flushes_at_forks = False


def open_all() -> None:
    """Set up `sys.stdin`, `sys.stdout` and `sys.stderr`."""
    open_stdin()
    sys.stdout = _writer(1, "<stdout>", "surrogateescape")
    sys.stderr = _writer(2, "<stderr>", "backslashreplace")
    # `sys.stdout = sys.__stdout__` in a program goes back to these.
    sys.__dict__.update(__stdout__=sys.stdout, __stderr__=sys.stderr)


def open_stdin() -> None:
    """Set up `sys.stdin`, with nothing of it read yet."""
    raw = io.BufferedReader(_file(0, "<stdin>", "r"))
    stream: Any = io.TextIOWrapper(raw, encoding="utf-8", errors="surrogateescape")
    stream.mode = "r"
    sys.__dict__.update(stdin=stream, __stdin__=stream)


def flush_in_time() -> None:
    """Flush before this process is killed, and before a child could print it again."""
    global _flushes_at_forks
    signals.on_last_words(lambda *_: _flush())
    if not _flushes_at_forks:
        _flushes_at_forks = True
        os.register_at_fork(before=_flush)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue


def _file(fd: int, name: str, mode: str) -> Any:
    raw: Any = io.FileIO(fd, mode, closefd=False)
    raw.name = name
    return raw


def _writer(fd: int, name: str, errors: str) -> Any:
    stream: Any = io.TextIOWrapper(
        io.BufferedWriter(_file(fd, name, "w")),
        encoding="utf-8",
        errors=errors,
        line_buffering=True,
    )
    stream.mode = "w"
    return stream
