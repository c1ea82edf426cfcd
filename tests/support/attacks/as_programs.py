"""Programs for cells, written as plain functions."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from toolcell.sandbox import Session


def program(function: Callable[..., Any], *helpers: Callable[..., Any]) -> str:
    """Return a program whose value is what `function` returns.

    The function's parameters are taken from inputs of the same names.
    """
    parts = ["from __future__ import annotations"]
    parts += [
        textwrap.dedent(inspect.getsource(each))
        for each in (assert_in_a_cell, *helpers, function)
    ]
    names = ", ".join(inspect.signature(function).parameters)
    return "\n".join([*parts, "assert_in_a_cell()", f"{function.__name__}({names})"])


async def value_of(cell: Session, code: str, **inputs: Any) -> Any:
    """Return the value of a program that ran in a new interpreter of a cell."""
    result = await cell.run(code, fresh=True, inputs=inputs)
    assert result.status == "ok", (result.status, result.stderr)
    return result.value


def assert_in_a_cell() -> None:
    """Stop an attack that was started anywhere but in a cell."""
    import os

    named = set(os.environ) >= {"MPLBACKEND", "TMPDIR"}
    assert named and "PYTEST_CURRENT_TEST" not in os.environ, "not in a cell"


def attempt(action: Callable[[], object]) -> str:
    """Return "done", or the name of the error that stopped an action."""
    import errno

    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    except BaseException as error:
        return type(error).__name__
    return "done"


def system_call(number: int, *arguments: Any) -> str:
    """Make a raw system call; return "done" or the name of its errno."""
    import ctypes
    import errno

    libc = ctypes.CDLL(None, use_errno=True)
    values = [
        ctypes.c_long(argument) if isinstance(argument, int) else argument
        for argument in arguments
    ]
    if libc.syscall(ctypes.c_long(number), *values) == -1:
        return errno.errorcode.get(ctypes.get_errno(), "unknown")
    return "done"
