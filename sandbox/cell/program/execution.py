"""Runs Python code as an interpreter would, and returns its outcome.

This runs in the program's process, so the program can change all of it.
"""

from __future__ import annotations

import _ast
import atexit
import builtins
import re
import sys
import types

from ..wire.contract import CELL_END, FILE_NAME, MAX_OUTPUT_BYTES
from . import arguments, displays, ending, source, stateful, streams, values
from .outcomes import Outcome, bare_error, error_outcome, exit_outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


_COROUTINE = 0x80
# Of `ast`, whose import costs a millisecond.
_AWAITS = 0x2000
_UNDERSCORES = ("_", "__", "___")
# The last values of a session or a notebook, and its `get_ipython()`.
_last: tuple[Any, ...] = (None, None, None)
_shell: Any = None


def prepare() -> None:
    """Set up `sys.argv`, the streams and the end, before a request is known."""
    arguments.set_argv([FILE_NAME])
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


def run(program: Any, home: str, path: str, *, lasts: bool = False) -> Outcome:
    """Run a program in `__main__`; SIGINT may interrupt it.

    Args:
        program: Source as bytes, or code that RestrictedPython has compiled.
        home: Its work dir.
        path: Its file, by which tracebacks name it.
        lasts: True if later programs find its variables. Then it is the cell of a
            notebook, and need not be plain Python.
    """
    _begin(home, lasts)
    outcome = stateful.interruptible(lambda: _outcome(program, path, is_cell=lasts))
    return outcome or Outcome(1, bare_error(KeyboardInterrupt()))


def run_notebook(program: bytes, home: str) -> Outcome:
    """Run the cells of a notebook, up to the first that fails; show each one's value.

    Args:
        program: The cells, each with `CELL_END` after it.
        home: Their work dir.
    """
    _begin(home, True)
    names = sys.modules["__main__"].__dict__

    def each() -> Outcome:
        outcome = Outcome(0, {"outcome": "ok", "value": {"json": None}})
        for cell in program.split(CELL_END.encode())[:-1]:
            path = source.place_run(cell, names, "cell")
            outcome = _outcome(cell, path, is_cell=True, shows=True)
            if outcome.report["outcome"] != "ok" or displays.in_child():
                break
        return outcome

    outcome = stateful.interruptible(each)
    return outcome or Outcome(1, bare_error(KeyboardInterrupt()))


def _begin(home: str, lasts: bool) -> None:
    if sys.__stdin__ is None or sys.__stdin__.closed:
        # `exit()` closes it.
        streams.open_stdin()
    displays.begin(home)
    streams.begin()
    if lasts:
        builtins.get_ipython = get_ipython  # type: ignore[attr-defined]


def end(code: int) -> int:
    """End the program, which SIGINT may interrupt; return its process's exit code."""
    global _last, _shell
    _last, _shell = (None, None, None), None
    ended: int | None = stateful.interruptible(lambda: ending.finish(code))
    return code if ended is None else ended


def get_ipython() -> Any:
    """Return what runs the commands of notebooks."""
    global _shell
    if _shell is None:
        from ..notebook.shell import Shell

        names = sys.modules["__main__"].__dict__
        _shell = Shell(
            names,
            lambda text, path: _execute(text.encode(), names, path, is_cell=True),
        )
    _shell.installed = arguments.installed
    return _shell


def _execute(
    program: Any, namespace: dict[str, Any], path: str, *, is_cell: bool
) -> Any:
    """Run a program; return the value of its last expression, if it is one."""
    if isinstance(program, types.CodeType):
        exec(program, namespace)
        return namespace.get("last_value_")
    source.remember(path, program)
    only = _expression(program, path)
    if only is not None:
        return eval(only, namespace)
    body, last = _compiled(program, path, is_cell=is_cell)
    # Made before: an audit hook of the program would be asked for one `exec` too many.
    value_of_last = last and types.FunctionType(last, namespace)
    # None of our functions is called in between: a program may trace them.
    if body is not None:
        value = eval(body, namespace)
        if body.co_flags & _COROUTINE:
            _result_of(value)
    if last is None:
        return None
    value = value_of_last()
    return _result_of(value) if last.co_flags & _COROUTINE else value


def _result_of(coroutine: Any) -> Any:
    from . import awaiting

    return awaiting.result_of(coroutine)


def _compiled(program: bytes, path: str, *, is_cell: bool) -> tuple[Any, Any]:
    """Compile a program, or a cell of a notebook, which has more than plain Python."""
    try:
        return _split(program, path)
    except SyntaxError as error:
        if not is_cell:
            raise
        found = error
    from ..notebook import cells

    text = program.decode()
    cell = cells.python_of(text)
    try:
        return _split(cell.encode(), path, _AWAITS)
    except SyntaxError as error:
        raise (found if cell == text else error) from None


def _split(program: bytes, path: str, flags: int = 0) -> tuple[Any, Any]:
    """Return the code of a program but for its last expression, and that one's code.

    A semicolon after it makes it a statement, without a value.
    """
    tree: Any = compile(program, path, "exec", _ast.PyCF_ONLY_AST | flags, True)
    last = None
    if tree.body and isinstance(tree.body[-1], _ast.Expr):
        if not _ends_in_semicolon(program, tree.body[-1]):
            last = tree.body.pop()
    value = last and _ast.Expression(last.value)
    try:
        return _both(tree if tree.body else None, value, path, flags)
    except RecursionError:
        # The compiler goes deeper into a text than into a tree that Python can see.
        before, value = _texts(program, last)
    return _both(before, value, path, flags)


def _both(before: Any, last: Any, path: str, flags: int) -> tuple[Any, Any]:
    # All of it before any of it runs, as an error anywhere in it is the program's.
    body = before and compile(before, path, "exec", flags, True)
    return body, last and compile(last, path, "eval", flags, True)


def _texts(program: bytes, last: Any) -> tuple[bytes | None, bytes | None]:
    """Return what is before the last expression, and that at its line and column."""
    if last is None:
        return program, None
    lines = program.splitlines(keepends=True)
    line, column = last.lineno - 1, last.col_offset
    start = sum(map(len, lines[:line])) + column
    end = sum(map(len, lines[: last.end_lineno - 1])) + last.end_col_offset
    text = program[start:end]
    if column:
        text = b"(" + b" " * (column - 1) + text + b")"
    return program[:start] or None, b"\n" * line + text


def _ends_in_semicolon(program: bytes, statement: Any) -> bool:
    if b";" not in program:
        return False
    line = program.splitlines()[statement.end_lineno - 1]
    return re.match(rb"[\s)]*;", line[statement.end_col_offset :]) is not None


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


def _outcome(program: Any, path: str, *, is_cell: bool, shows: bool = False) -> Outcome:
    """Run a program; return its outcome.

    Args:
        program: As for `run`.
        path: Its file.
        is_cell: True if it is the cell of a notebook; its value is `_` from now on.
        shows: True if its value is displayed, whatever it is.
    """
    names = sys.modules["__main__"].__dict__
    try:
        try:
            value = _execute(program, names, path, is_cell=is_cell)
        finally:
            if not is_cell:
                # They would be called for our own functions; an audit hook of the
                # program is asked for each change.
                if sys.getprofile() is not None:
                    sys.setprofile(None)
                if sys.gettrace() is not None:
                    sys.settrace(None)
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
    if is_cell:
        _keep(value, names)
    report, size = _reported(value)
    shows = shows and value is not None
    # The report has the beginning of a long text alone.
    whole = shows or 0 < size <= MAX_OUTPUT_BYTES
    if whole or displays.wanted(value):
        _show(lambda: displays.finish(value, whole=whole, is_value=not shows))
    return Outcome(0, {"outcome": "ok", "value": report})


def _reported(value: Any) -> tuple[dict[str, Any], int]:
    """Return what `values.report` does, or the type alone."""
    try:
        return values.report(value)
    except BaseException:
        return {"type": values.type_name(value)}, 0


def _keep(value: Any, names: dict[str, Any]) -> None:
    """Name the last values as IPython does, unless the program uses these names."""
    global _last
    if value is None or "_" in builtins.__dict__:
        return
    if all(names.get(name) is _last[at] for at, name in enumerate(_UNDERSCORES)):
        _last = (value, *_last[:2])
        for at, name in enumerate(_UNDERSCORES):
            names[name] = _last[at]


def _show(step: Callable[[], object]) -> None:
    try:
        try:
            step()
        except Exception:
            with stateful.PlainBuiltins() as replaced:
                if not replaced:
                    raise
                step()
    except BaseException:
        streams.write_error("toolcell: outputs could not be shown\n")
