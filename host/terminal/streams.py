"""The standard streams of a command: none is missing, and one that breaks is told."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import IO, Any, TextIO

from .exit_codes import EXIT_BROKEN_PIPE, EXIT_COULD_NOT_RUN

_NAMES = ("stdin", "stdout", "stderr")


class OutputError(OSError):
    """What the command prints can no longer be written.

    It has no `errno`: libraries that see a broken pipe end the program in their own
    way.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write the output: {error.strerror}")
        broken_pipe = isinstance(error, BrokenPipeError)
        self.exit_code = EXIT_BROKEN_PIPE if broken_pipe else EXIT_COULD_NOT_RUN


class _Output(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(error) from None


def ensure_standard_streams() -> None:
    """Open what is missing, and let what is written to fail with OutputError.

    A closed descriptor would go to the next file or socket that is opened.
    """
    for descriptor, name in enumerate(_NAMES):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, _null("w" if descriptor else "r"))
        elif descriptor and stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _telling(stream, descriptor))


def _null(mode: str) -> IO[Any]:
    descriptor = os.open(os.devnull, os.O_RDWR)
    os.set_inheritable(descriptor, True)
    return open(descriptor, mode, encoding="utf-8", errors="replace", closefd=False)


def _telling(stream: TextIO, descriptor: int) -> TextIO:
    # With PYTHONUNBUFFERED it is no `line_buffering` that says so.
    at_once = getattr(stream, "write_through", False)
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(descriptor, "w", closefd=False)),
        encoding=stream.encoding,
        # Half of a surrogate pair, and a letter that the locale lacks, must not raise.
        errors="backslashreplace",
        line_buffering=bool(stream.line_buffering or at_once),
    )


@contextlib.contextmanager
def redirect_prints_to_stderr() -> Iterator[None]:
    """Send what tools print to standard error: standard output has the result alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def flush_streams() -> None:
    """Write what waits. Raises OutputError."""
    sys.stdout.flush()
    sys.stderr.flush()


def drop_output() -> None:
    """Throw away what cannot be written, or Python would try again at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OutputError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
