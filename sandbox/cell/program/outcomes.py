"""The report that a program's process writes of its end."""

from __future__ import annotations

import io
import linecache
import os
import sys
import traceback

from . import streams, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any

_MAX_TEXT = 64 * 1024
_excepthook = sys.excepthook
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
    _print_code(code)
    return Outcome(1, {"outcome": "exit"})


def _print_code(code: object) -> None:
    try:
        text = str(code)
    except Exception:
        text = ""
    if sys.__dict__.get("stderr") is None:
        os.write(2, f"{text}\n".encode("utf-8", "backslashreplace"))
    else:
        streams.write_error(f"{text}\n")


def error_outcome(error: BaseException) -> Outcome:
    """Print the traceback without our own frames, and return the outcome."""
    frames = error.__traceback__ = _without_ours(error.__traceback__)
    if isinstance(error, SyntaxError) and error.text is None and error.filename:
        # The compiler looks for it in files alone.
        error.text = linecache.getline(error.filename, error.lineno or 0) or None
    text = _formatted(error)
    found = (type(error), error, frames)
    sys.last_type, sys.last_value, sys.last_traceback = found
    sys.__dict__["last_exc"] = error
    if sys.__dict__.get("excepthook", _excepthook) is _excepthook:
        streams.write_error(text)
    elif (stop := _call_hook(found, text)) is not None:
        return exit_outcome(stop.code)
    exception = {
        "type": values.type_name(error),
        "message": _message(error),
        "traceback": text[-_MAX_TEXT:],
        "errno": error.errno if isinstance(error, OSError) else None,
    }
    return Outcome(1, {"outcome": "error", "exception": exception})


def _formatted(error: BaseException) -> str:
    """Return what an interpreter prints of an error."""
    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
    except Exception:
        # C needs nothing that the error or the program may have spoilt.
        return _by_interpreter(error)
    text = "".join(lines)
    if sys.version_info < (3, 12) and isinstance(error, (AttributeError, NameError)):
        # Only C knows which name was meant.
        last = _by_interpreter(error).splitlines()[-1]
        _, end, meant = last.rpartition(". Did you mean: ")
        if end and not text.endswith(f"{meant}\n"):
            text = f"{text[:-1]}{end}{meant}\n"
    return text


def _by_interpreter(error: BaseException) -> str:
    kept = sys.__dict__.get("stderr")
    sys.stderr = printed = io.StringIO()
    try:
        _excepthook(type(error), error, error.__traceback__)
    finally:
        sys.__dict__["stderr"] = kept
    return printed.getvalue()


def _message(error: BaseException) -> str:
    try:
        return str(error)[:_MAX_TEXT]
    except Exception:
        return ""


def _without_ours(frames: types.TracebackType | None) -> types.TracebackType | None:
    """Return the frames of a program alone, also of what its commands ran."""
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    if frames is not None:
        each = frames
        while each.tb_next is not None:
            if _is_ours(each.tb_next.tb_frame.f_code.co_filename):
                each.tb_next = each.tb_next.tb_next
            else:
                each = each.tb_next
    return frames


def _is_ours(file: str) -> bool:
    """Return True for a file of this package, as `cell.folder` names them."""
    return file.startswith(f"<{__name__.partition('.')[0]}.")


def _call_hook(error: tuple[Any, ...], text: str) -> SystemExit | None:
    """Have the program's own hook show an error; return what it exits with, if so."""
    try:
        sys.excepthook(*error)
    except SystemExit as stop:
        return stop
    except BaseException as second:
        frames = second.__traceback__ and second.__traceback__.tb_next
        own = "".join(traceback.format_exception(type(second), second, frames))
        streams.write_error(f"Error in sys.excepthook:\n{own}\n")
        streams.write_error(f"Original exception was:\n{text}")
    return None


def bare_error(error: BaseException) -> dict[str, Any]:
    """Return a report without message, for exceptions that cannot be formatted."""
    kind = type(error).__name__
    exception = {"type": kind, "message": "", "traceback": "", "errno": None}
    return {"outcome": "error", "exception": exception}
