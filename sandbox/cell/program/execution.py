"""Runs Python code as an interpreter would, and returns its outcome.

This runs in the program's process, so the program can change all of it.
"""

from __future__ import annotations

import _ast
import atexit
import builtins
import io
import linecache
import sys
import types

from ..wire.contract import FILE_NAME
from . import displays, ending, stateful, values
from .outcomes import Outcome, bare_error, error_outcome, exit_outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def prepare() -> None:
    """Set up `sys.argv`, the streams and the end, before a request is known."""
    sys.argv = [FILE_NAME]
    _open_streams()
    atexit._clear()


def make_main_module() -> None:
    """Set up `__main__`, after the fork: what is older than it is never collected."""
    sys.modules.pop("__main__", None)
    ending.begin()
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module


def _open_streams() -> None:
    """Set up `sys.stdin`, `sys.stdout` and `sys.stderr`."""
    open_stdin()
    sys.stdout = _writer(1, "surrogateescape")
    sys.stderr = _writer(2, "backslashreplace")
    # `sys.stdout = sys.__stdout__` in a program goes back to these.
    sys.__dict__.update(__stdout__=sys.stdout, __stderr__=sys.stderr)


def open_stdin() -> None:
    """Set up `sys.stdin`, with nothing of it read yet."""
    sys.stdin = io.TextIOWrapper(io.FileIO(0, "r", closefd=False), encoding="utf-8")
    sys.__dict__["__stdin__"] = sys.stdin


def _writer(fd: int, errors: str) -> io.TextIOWrapper:
    # Unbuffered, as `python -u`: what was printed before a kill is not lost.
    raw = io.FileIO(fd, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, write_through=True)


def run(program: Any, home: str) -> Outcome:
    """Run a program in `__main__`; SIGINT may interrupt it.

    Args:
        program: Source as bytes, or code that RestrictedPython has compiled.
        home: Its work dir.
    """
    if sys.__stdin__ is None or sys.__stdin__.closed:
        # `exit()` closes it.
        open_stdin()
    displays.begin(home)
    outcome = stateful.interruptible(lambda: _outcome(program))
    return outcome or Outcome(1, bare_error(KeyboardInterrupt()))


def end(code: int) -> int:
    """End the program, which SIGINT may interrupt; return its process's exit code."""
    ended: int | None = stateful.interruptible(lambda: ending.finish(code))
    return code if ended is None else ended


def _execute(program: Any, namespace: dict[str, Any]) -> Any:
    """Run a program; return the value of its last expression, if it is one."""
    if isinstance(program, types.CodeType):
        exec(program, namespace)
        return namespace.get("last_value_")
    text = program.decode("utf-8", "replace")
    # Split as the parser does: str.splitlines knows more line ends.
    lines = list(io.StringIO(text, newline=None))
    linecache.cache[FILE_NAME] = (len(text), None, lines, FILE_NAME)
    only = _expression(program)
    if only is not None:
        return eval(only, namespace)
    tree: Any = compile(
        program, FILE_NAME, "exec", _ast.PyCF_ONLY_AST, dont_inherit=True
    )
    last: Any = None
    if tree.body and isinstance(tree.body[-1], _ast.Expr):
        last = _ast.Expression(tree.body.pop().value)
    if tree.body:
        exec(compile(tree, FILE_NAME, "exec", 0, True), namespace)
    if last is None:
        return None
    return eval(compile(last, FILE_NAME, "eval", 0, True), namespace)


def _expression(program: bytes) -> types.CodeType | None:
    """Return a program that is one expression on one line, compiled without a tree.

    A program with a backslash may cause a warning, which must not appear twice.
    """
    if b"\n" in program or b"\r" in program or b"\\" in program:
        return None
    try:
        return compile(program, FILE_NAME, "eval", 0, True)
    except Exception:
        return None


def _outcome(program: Any) -> Outcome:
    try:
        value = _execute(program, sys.modules["__main__"].__dict__)
    except SystemExit as stop:
        return exit_outcome(stop.code)
    except BaseException as error:
        try:
            return error_outcome(error)
        except BaseException:
            return Outcome(1, bare_error(error))
    if displays.in_child():
        return Outcome(0, {"outcome": "ok", "value": {"json": None}})
    try:
        if displays.wanted(value):
            displays.finish(value)
    except BaseException:
        sys.stderr.write("toolcell: outputs could not be shown\n")
    try:
        return Outcome(0, {"outcome": "ok", "value": values.report(value)})
    except BaseException:
        return Outcome(0, {"outcome": "ok", "value": {"type": values.type_name(value)}})
