"""The signature of a callable: its parameters and their types."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import types
import typing
from collections import ChainMap
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Annotated, Any

from toolcell.core import ConfigError

from .context import ToolContext

_WORD = re.compile(r"[^\W\d]\w*")
_OPEN_KINDS = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name, or the name of what it wraps."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function under partials, methods, wrappers and callable objects."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif inspect.isfunction(function) or inspect.isbuiltin(function):
            return function
        elif isinstance(function, type) or not hasattr(
            type(function).__call__, "__code__"
        ):
            return function
        else:
            function = type(function).__call__


def docstring_of(function: Callable[..., Any]) -> str | None:
    """Return the docstring of a function, or of the class of a callable object."""
    plain = plain_function(function)
    while isinstance(function, functools.partial):
        function = function.func
    if plain.__doc__ or inspect.isroutine(function):
        return plain.__doc__
    return type(function).__doc__


def open_parameters(function: Callable[..., Any]) -> list[Parameter]:
    """Return the parameters that a caller fills.

    Arguments that a partial gives by name are settled: the model neither sees nor
    changes them.

    Raises:
        ConfigError: The function takes any number of arguments, or is a method
            without its object.
    """
    name = name_of(function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise ConfigError(
            f"{name} does not tell its parameters", hint="wrap it in a function"
        ) from None
    settled = function.keywords if isinstance(function, functools.partial) else {}
    for parameter in parameters:
        if parameter.kind in _OPEN_KINDS:
            raise ConfigError(
                f"{name} takes any number of arguments in {parameter}",
                hint="name the parameters, or take one list or dict",
            )
    if parameters and inspect.isfunction(function) and _is_method(function):
        first = parameters[0]
        if first.name in ("self", "cls") and first.annotation is Parameter.empty:
            raise ConfigError(
                f"{name} is a method without its object",
                hint=f"register `instance.{name}`",
            )
    return [parameter for parameter in parameters if parameter.name not in settled]


def _is_method(function: Callable[..., Any]) -> bool:
    owner = function.__qualname__.rpartition(".")[0]
    return bool(owner) and not owner.endswith("<locals>")


def resolve_annotations(
    function: Callable[..., Any],
    parameters: list[Parameter],
    namespace: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the type of each parameter; `Any` where none is written.

    Raises:
        ConfigError: An annotation names what is not defined, yet or here.
    """
    written = {
        parameter.name: Any
        if parameter.annotation is Parameter.empty
        else parameter.annotation
        for parameter in parameters
    }
    plain = plain_function(function)
    scope = getattr(plain, "__globals__", {})
    # Its own carrier: the return type may name what only type checkers see.
    carrier = types.SimpleNamespace(__annotations__=written)
    try:
        return typing.get_type_hints(
            carrier,
            globalns=dict(scope),
            localns={**namespace, **_closure_of(plain)},
            include_extras=True,
        )
    except NameError as error:
        raise unresolved(name_of(function), error.name) from None
    except (TypeError, SyntaxError, AttributeError) as error:
        raise ConfigError(
            f"an annotation of {name_of(function)} cannot be read: {error}",
            hint="write it as a type that its module knows",
        ) from None


def _closure_of(function: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if inspect.isfunction(function):
        cells = function.__closure__ or ()
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
            # A cell is empty while the function around it still runs.
            with contextlib.suppress(ValueError):
                found[name] = cell.cell_contents
    return found


def local_names(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the local names that annotations use, from the enclosing function.

    Call it while the function is defined. Only names in annotations are returned.
    """
    plain = plain_function(function)
    annotations = getattr(plain, "__annotations__", {}).values()
    written = " ".join(
        annotation for annotation in annotations if isinstance(annotation, str)
    )
    if not written or "<locals>" not in getattr(plain, "__qualname__", ""):
        return {}
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame.f_globals):
        frame = frame.f_back
    scopes: list[Mapping[str, Any]] = []
    while frame is not None:
        scopes.append(frame.f_locals)
        # The body of a class is run by the function that it stands in.
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        is_module = frame.f_locals is frame.f_globals
        frame = None if is_function or is_module else frame.f_back
    known = ChainMap(*(dict(scope) for scope in scopes))
    return {name: known[name] for name in _WORD.findall(written) if name in known}


def _is_ours(scope: Mapping[str, Any]) -> bool:
    name = str(scope.get("__name__"))
    return name == "abc" or f"{name}.".startswith("toolcell.tools.")


def unresolved(function: str, missing: str | None) -> ConfigError:
    """Return the error of an annotation that names nothing."""
    return ConfigError(
        f"an annotation of {function} names {missing}, which is not defined",
        hint="define it at the top of the module, before the tool is registered",
    )


def wants_context(annotation: Any) -> bool:
    """Tell whether an annotation asks for the `ToolContext`."""
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    members = union_members(annotation) or (annotation,)
    return any(
        isinstance(member, type) and issubclass(member, ToolContext)
        for member in members
    )


def union_members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union; none if it is something else."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return ()
