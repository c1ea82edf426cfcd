"""Turns a plain function into a program that a cell can run."""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import textwrap
import types
from collections.abc import Callable
from typing import Any

from toolcell.core import InvalidInputError

_HINT = "pass a plain function whose helpers are functions, modules or JSON values"


def call_program(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the source and the inputs of a program that calls `function`.

    What the function refers to by global name travels along: modules as imports,
    plain functions as source, JSON values as inputs.

    Raises:
        InvalidInputError: The function is no plain function with source, has a
            closure, or refers to something that cannot travel.
    """
    parts: dict[str, str] = {}
    inputs: dict[str, Any] = {"call_args": list(args), "call_kwargs": kwargs}
    _collect(function, parts, inputs)
    source = "\n".join(parts.values())
    return f"{source}\n{function.__name__}(*call_args, **call_kwargs)\n", inputs


def _collect(
    function: Callable[..., Any], parts: dict[str, str], inputs: dict[str, Any]
) -> None:
    name = getattr(function, "__name__", repr(function))
    if not isinstance(function, types.FunctionType) or inspect.iscoroutinefunction(
        function
    ):
        raise InvalidInputError(f"{name} is not a plain function", hint=_HINT)
    if not name.isidentifier():
        raise InvalidInputError("a lambda has no name to call it by", hint=_HINT)
    if function.__closure__:
        inner = ", ".join(function.__code__.co_freevars)
        raise InvalidInputError(f"{name} has a closure over {inner}", hint=_HINT)
    parts[name] = ""
    text = _source(function)
    for used in sorted(_global_names(function.__code__)):
        if used not in parts and used not in inputs:
            _carry(used, function, parts, inputs)
    # Helpers first: defaults and annotations may name them.
    parts.pop(name)
    parts[name] = text


def _source(function: types.FunctionType) -> str:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        raise InvalidInputError(
            f"the source of {function.__name__} cannot be read", hint=_HINT
        ) from None
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise InvalidInputError(f"{function.__name__} is no def", hint=_HINT)
    definition.decorator_list = []
    return ast.unparse(_WithoutAnnotations().visit(definition))


class _WithoutAnnotations(ast.NodeTransformer):
    """Types may name what does not travel; at run time nobody reads them."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node


def _global_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def _carry(
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
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise InvalidInputError(
                f"{function.__name__} refers to {name}, which cannot travel "
                f"({type(value).__name__})",
                hint=_HINT,
            ) from None
        inputs[name] = value
