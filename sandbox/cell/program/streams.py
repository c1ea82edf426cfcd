"""The standard streams of a program, buffered as plain Python's are at a terminal.

Each line of what is printed leaves the process's own memory at once, so it is not lost
in whatever way the program ends. The beginning of a line leaves before the supervisor
kills, and before a fork.
"""

from __future__ import annotations

import io
import os
import sys

from ..kernel import signals
from ..wire.output_page import BEGAN, FLUSHED
from .paged_output import ErrorWriter, Lines, TextIOWrapper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..wire.output_page import OutputPage


# A child of the program may print, too.
_STARTS = frozenset(("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec"))
_LOOKS_UP = "ctypes.dlsym"
_HEARD = _STARTS | {_LOOKS_UP}
# Functions of C by which a process forks, and no hook of Python is called.
_FORKS = frozenset(("fork", "_Fork", "vfork", "forkpty", "clone", "syscall", "daemon"))
_forks_unseen = False
_hooked = False
_lines: Lines
page: OutputPage | None = None
"""The page that programs print into; None: they have their pipes alone."""


def open_all() -> None:
    """Set up `sys.stdin`, `sys.stdout` and `sys.stderr`."""
    global _lines
    open_stdin()
    _lines = Lines(_file(1, "<stdout>", "w"))
    stdout: Any = TextIOWrapper(_lines, encoding="utf-8", errors="surrogateescape")
    error_writer = ErrorWriter(_file(2, "<stderr>", "w"), _lines)
    stderr: Any = io.TextIOWrapper(
        error_writer, encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
    stdout.mode = stderr.mode = "w"
    sys.stdout, sys.stderr = stdout, stderr
    # `sys.stdout = sys.__stdout__` in a program goes back to these.
    sys.__dict__.update(__stdout__=sys.stdout, __stderr__=sys.stderr)


def open_stdin() -> None:
    """Set up `sys.stdin`, with nothing of it read yet."""
    raw = io.BufferedReader(_file(0, "<stdin>", "r"))
    # As Python's own: a carriage return of the input stays one.
    stream: Any = io.TextIOWrapper(
        raw, encoding="utf-8", errors="surrogateescape", newline="\n"
    )
    stream.mode = "r"
    sys.__dict__.update(stdin=stream, __stdin__=stream)


def write_error(text: str) -> None:
    """Print to standard error, in vain where the program has left none."""
    try:
        sys.stderr.write(text)
    except Exception:
        return


def flush_in_time() -> None:
    """Flush before this process is killed, and before a child could print."""
    global _hooked
    signals.on_last_words(_end_line)
    if not _hooked:
        _hooked = True
        os.register_at_fork(before=flush, after_in_child=_leave_page)
        sys.addaudithook(_before_child)


def _end_line(*_: object) -> None:
    flush()
    if page is not None:
        page.words[FLUSHED] = 1


def begin() -> None:
    """Begin a run, which prints into the page."""
    if page is not None and not _forks_unseen:
        _lines.begin(page)


def note_start() -> None:
    """Say that a signal may interrupt the program from now on."""
    if page is not None:
        page.words[BEGAN] = 1


def end() -> None:
    """End the run; threads that it left print into the pipe."""
    try:
        _lines.end()
    except (OSError, ValueError):
        # It has closed the file; what is in the page is taken out of that.
        return


def _leave_page() -> None:
    _lines.forget()


def _before_child(event: str, about: tuple[Any, ...]) -> None:
    global _forks_unseen
    if event not in _HEARD:
        return
    if event != _LOOKS_UP:
        _lines.send_if_open()
    elif about[1] in _FORKS and _lines.in_page:
        _forks_unseen = True
        end()


def flush() -> None:
    """Flush both streams as far as they can be."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue


def _file(fd: int, name: str, mode: str) -> Any:
    raw: Any = io.FileIO(fd, mode, closefd=False)
    raw.name = name
    return raw
