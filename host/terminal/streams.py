"""The standard streams of a command: opened if missing, with an error if broken."""

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
    """The output of the command cannot be written.

    This error has no `errno`, because libraries that see a broken pipe end the
    program in their own way.
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
    """Open missing streams, and make failed writes raise OutputError.

    A closed descriptor would be given to the next file or socket that is opened.
    """
    for descriptor, name in enumerate(_NAMES):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, _null("w" if descriptor else "r"))
        elif descriptor and stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _checked_writer(stream, descriptor))


def _null(mode: str) -> IO[Any]:
    descriptor = os.open(os.devnull, os.O_RDWR)
    os.set_inheritable(descriptor, True)
    return open(descriptor, mode, encoding="utf-8", errors="replace", closefd=False)


def _checked_writer(stream: TextIO, descriptor: int) -> TextIO:
    # PYTHONUNBUFFERED sets `write_through` in place of `line_buffering`.
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
    """Send the prints of tools to standard error; only the result goes to stdout."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def flush_streams() -> None:
    """Write all buffered output. Raises OutputError."""
    sys.stdout.flush()
    sys.stderr.flush()


def drop_output() -> None:
    """Discard output that cannot be written, or Python would try again at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OutputError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
