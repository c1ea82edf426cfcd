"""Runs Python code as an interpreter would, and returns its outcome.

This runs in the program's process, so the program can change all of it.
"""

from __future__ import annotations

import _ast
import atexit
import builtins
import sys
import types

from ..wire.contract import FILE_NAME
from . import displays, ending, source, stateful, streams, values
from .outcomes import Outcome, bare_error, error_outcome, exit_outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


def prepare() -> None:
    """Set up `sys.argv`, the streams and the end, before a request is known."""
    sys.argv = [FILE_NAME]
    streams.open_all()
    atexit._clear()


def make_main_module() -> None:
    """Set up `__main__`, after the fork: what is older than it is never collected."""
    sys.modules.pop("__main__", None)
    ending.begin()
    streams.flush_in_time()
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module


def run(program: Any, home: str, path: str) -> Outcome:
    """Run a program in `__main__`; SIGINT may interrupt it.

    Args:
        program: Source as bytes, or code that RestrictedPython has compiled.
        home: Its work dir.
        path: Its file, by which tracebacks name it.
    """
    if sys.__stdin__ is None or sys.__stdin__.closed:
        # `exit()` closes it.
        streams.open_stdin()
    displays.begin(home)
    outcome = stateful.interruptible(lambda: _outcome(program, path))
    return outcome or Outcome(1, bare_error(KeyboardInterrupt()))


def end(code: int) -> int:
    """End the program, which SIGINT may interrupt; return its process's exit code."""
    ended: int | None = stateful.interruptible(lambda: ending.finish(code))
    return code if ended is None else ended


def _execute(program: Any, namespace: dict[str, Any], path: str) -> Any:
    """Run a program; return the value of its last expression, if it is one."""
    if isinstance(program, types.CodeType):
        exec(program, namespace)
        return namespace.get("last_value_")
    source.remember(path, program)
    only = _expression(program, path)
    if only is not None:
        return eval(only, namespace)
    try:
        body, last = _split(program, path)
    except RecursionError:
        # The compiler itself goes deeper than a tree that Python can see.
        body, last = compile(program, path, "exec", 0, True), None
    if body is not None:
        exec(body, namespace)
    return None if last is None else eval(last, namespace)


def _split(program: bytes, path: str) -> tuple[Any, Any]:
    """Return the code of a program but for its last expression, and that one's code."""
    tree: Any = compile(program, path, "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
    last = body = None
    if tree.body and isinstance(tree.body[-1], _ast.Expr):
        last = _ast.Expression(tree.body.pop().value)
    # All of it before any of it runs, as an error anywhere in it is the program's.
    if tree.body:
        body = compile(tree, path, "exec", 0, True)
    return body, last and compile(last, path, "eval", 0, True)


def _expression(program: bytes, path: str) -> types.CodeType | None:
    """Return a program that is one expression on one line, compiled without a tree.

    A program with a backslash may cause a warning, which must not appear twice.
    """
    if b"\n" in program or b"\r" in program or b"\\" in program:
        return None
    try:
        return compile(program, path, "eval", 0, True)
    except Exception:
        return None


def _outcome(program: Any, path: str) -> Outcome:
    try:
        value = _execute(program, sys.modules["__main__"].__dict__, path)
    except SystemExit as stop:
        _show(displays.finish_figures)
        return exit_outcome(stop.code)
    except BaseException as error:
        _show(displays.finish_figures)
        try:
            return error_outcome(error)
        except BaseException:
            return Outcome(1, bare_error(error))
    if displays.in_child():
        return Outcome(0, {"outcome": "ok", "value": {"json": None}})
    _show(lambda: displays.wanted(value) and displays.finish(value))
    try:
        return Outcome(0, {"outcome": "ok", "value": values.report(value)})
    except BaseException:
        return Outcome(0, {"outcome": "ok", "value": {"type": values.type_name(value)}})


def _show(step: Callable[[], object]) -> None:
    try:
        step()
    except BaseException:
        sys.stderr.write("toolcell: outputs could not be shown\n")
