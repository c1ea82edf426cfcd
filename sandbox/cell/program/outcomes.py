"""The report that a program's process writes of its end."""

from __future__ import annotations

import sys
import traceback

from ..wire.contract import FILE_NAME
from . import values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_TEXT = 64 * 1024
# An exit code beyond it is -1 to Python.
_C_LONG = 1 << 63


class Outcome:
    """The exit code of a program, and the report for the result pipe."""

    __slots__ = ("exit_code", "report")

    def __init__(self, exit_code: int, report: dict[str, Any]) -> None:
        self.exit_code = exit_code
        self.report = report


def exit_outcome(code: object) -> Outcome:
    """Return the outcome of a program that raised SystemExit(code)."""
    if code is None:
        return Outcome(0, {"outcome": "exit"})
    if isinstance(code, int):
        fits = -_C_LONG <= code < _C_LONG
        return Outcome(code & 0xFF if fits else 0xFF, {"outcome": "exit"})
    print(code, file=sys.stderr)
    return Outcome(1, {"outcome": "exit"})


def error_outcome(error: BaseException) -> Outcome:
    """Print the traceback without our own frames, and return the outcome."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != FILE_NAME:
        frames = frames.tb_next
    error.__traceback__ = frames
    text = "".join(traceback.format_exception(type(error), error, frames))
    sys.stderr.write(text)
    exception = {
        "type": values.type_name(error),
        "message": str(error)[:_MAX_TEXT],
        "traceback": text[-_MAX_TEXT:],
        "errno": error.errno if isinstance(error, OSError) else None,
    }
    return Outcome(1, {"outcome": "error", "exception": exception})


def bare_error(error: BaseException) -> dict[str, Any]:
    """Return a report without message, for exceptions that cannot be formatted."""
    kind = type(error).__name__
    exception = {"type": kind, "message": "", "traceback": "", "errno": None}
    return {"outcome": "error", "exception": exception}
