"""Turns a plain function into a program that a cell can run."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import json
import textwrap
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from toolcell.core import CallFailedError, InvalidInputError

from ..results.result import ExecutionResult, OpaqueValue
from .captured_values import CapturedValues, global_names

_HINT = "pass a function that is written in Python and not async"


class CallProgram(NamedTuple):
    """A program that calls a function, with its inputs."""

    code: str
    inputs: dict[str, Any]
    """The `inputs` for `SandboxManager.run`."""

    values: tuple[tuple[str, Any], ...]
    """Data that travels along, each with its name or key."""


def call_program(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> CallProgram:
    """Return a program that calls `function` in a cell.

    The values that the function refers to travel along: modules as imports, helpers,
    data, and the current values of context variables. If that is enough, the source
    travels. A function with a closure or without source is pickled by cloudpickle, and
    needs a cell with the same version of Python.

    Args:
        function: A function, method, partial or lambda; not async.
        args: Its arguments, JSON values.
        kwargs: Its arguments by name, JSON values.

    Raises:
        InvalidInputError: The function, or something that it refers to, cannot travel.
    """
    # Commands that call no function start without cloudpickle.
    from .function_pickle import is_importable, pickled_program

    passed = {"call_args": list(args), "call_kwargs": kwargs}
    kinds = (types.FunctionType, types.MethodType, functools.partial)
    name = getattr(function, "__name__", type(function).__name__)
    if not isinstance(function, kinds) or inspect.iscoroutinefunction(function):
        raise InvalidInputError(f"{name} is not a plain function", hint=_HINT)
    captured = CapturedValues(function, is_importable)
    parts: dict[str, str] = {}
    inputs: dict[str, Any] = {}
    try:
        _collect(function, parts, inputs)
    except _NeedsPickleError:
        code, inputs = pickled_program(function, captured)
    else:
        source = "\n".join(parts.values())
        code = f"{source}\n{name}(*call_args, **call_kwargs)\n"
    return CallProgram(code, inputs | passed, tuple(captured.values))


def returned(function: Callable[..., Any], result: ExecutionResult) -> Any:
    """Return a function's value from its program's result. Raises CallFailedError."""
    name = getattr(function, "__name__", type(function).__name__)
    if result.status != "ok":
        why = result.exception.message if result.exception else result.status
        raise CallFailedError(
            f"{name} failed: {why}",
            result=result,
            hint="see `result` of this error: status, output, traceback",
        )
    if isinstance(result.value, OpaqueValue):
        raise CallFailedError(
            f"{name} returned what is not JSON",
            result=result,
            hint="return None, bool, int, float, str, list or dict",
        )
    return result.value


class _NeedsPickleError(Exception):
    """The source of a function is not enough to call it."""


def _collect(
    function: Callable[..., Any], parts: dict[str, str], inputs: dict[str, Any]
) -> None:
    if (
        not isinstance(function, types.FunctionType)
        or inspect.iscoroutinefunction(function)
        or not function.__name__.isidentifier()
        or function.__closure__
    ):
        raise _NeedsPickleError
    name = function.__name__
    parts[name] = ""
    text = _source(function)
    for used in sorted(global_names(function.__code__)):
        if used not in parts and used not in inputs:
            _collect_global(used, function, parts, inputs)
    # Helpers first: defaults and annotations may name them.
    parts.pop(name)
    parts[name] = text


def _source(function: types.FunctionType) -> str:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        raise _NeedsPickleError from None
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise _NeedsPickleError
    definition.decorator_list = []
    return ast.unparse(_WithoutAnnotations().visit(definition))


class _WithoutAnnotations(ast.NodeTransformer):
    """Drops annotations: they may name types that do not travel."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node


def _collect_global(
    name: str,
    function: types.FunctionType,
    parts: dict[str, str],
    inputs: dict[str, Any],
) -> None:
    if name not in function.__globals__:
        # A builtin, an attribute, or a NameError that the cell will report.
        return
    value = function.__globals__[name]
    if isinstance(value, types.ModuleType):
        parts[name] = f"import {value.__name__} as {name}"
    elif isinstance(value, types.FunctionType):
        _collect(value, parts, inputs)
    elif getattr(builtins, name, None) is not value:
        try:
            same = json.loads(json.dumps(value, allow_nan=False)) == value
        except (TypeError, ValueError):
            same = False
        if not same:
            raise _NeedsPickleError
        inputs[name] = value
