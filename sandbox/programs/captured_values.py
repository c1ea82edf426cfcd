"""Finds the values that a function refers to, and refuses those that cannot travel."""

from __future__ import annotations

import builtins
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import re
import types
import uuid
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

from toolcell.core import InvalidInputError

_HINT = "pass what it needs as an argument, or build it inside"
_PLAIN: tuple[type, ...] = (
    *(type(None), bool, int, float, complex, str, bytes, range),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.timezone),
    *(decimal.Decimal, fractions.Fraction, uuid.UUID, pathlib.PurePath, re.Pattern),
)


class CapturedValues:
    """The values that a function and its helpers refer to.

    Args:
        function: A function, method, partial or lambda.
        is_importable: Returns True for functions and classes that a cell can import.

    Raises:
        InvalidInputError: One of the values cannot travel to a cell.
    """

    def __init__(
        self, function: Callable[..., Any], is_importable: Callable[[Any], bool]
    ) -> None:
        self.name = str(getattr(function, "__name__", type(function).__name__))
        self.values: list[tuple[str, Any]] = []
        """Data without parts, each with its name or key."""

        self.context: dict[str, tuple[Any, ...]] = {}
        """The value of each context variable by its name; empty where it has none."""

        self.modules: set[str] = set()
        """Modules whose classes travel by value."""

        self._is_importable = is_importable
        self._seen: set[int] = set()
        self._kept: list[Any] = []
        self._visit(self.name, function)

    def _visit(self, name: str, value: Any) -> None:
        if isinstance(value, _PLAIN):
            self.values.append((name, value))
            return
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        # Keeps the object alive, so that no other one gets its id.
        self._kept.append(value)
        if isinstance(value, types.FunctionType):
            self._look_into_function(value)
        elif isinstance(value, functools.partial):
            self._visit(name, value.func)
            self._look_at_all(name, [*value.args, *value.keywords.values()])
        elif isinstance(value, types.MethodType):
            self._visit(name, value.__func__)
            self._visit(name, value.__self__)
        elif isinstance(value, type):
            self._look_into_class(value)
        elif isinstance(value, ContextVar):
            self._look_at_context(value)
        elif not isinstance(value, types.ModuleType | types.BuiltinFunctionType):
            self._look_into_data(name, value)

    def _look_at_all(self, name: str, values: Iterable[Any]) -> None:
        for value in values:
            self._visit(name, value)

    def _look_into_function(self, function: types.FunctionType) -> None:
        if self._is_importable(function):
            return
        self.modules.add(function.__module__)
        for name, value in _names_of(function).items():
            self._visit(name, value)

    def _look_into_class(self, kind: type) -> None:
        if self._is_importable(kind):
            return
        self.modules.add(kind.__module__)
        for name, value in vars(kind).items():
            plain = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(plain, types.FunctionType) or not name.startswith("__"):
                self._visit(name, plain)

    def _look_at_context(self, variable: ContextVar[Any]) -> None:
        try:
            value = variable.get()
        except LookupError:
            self.context[variable.name] = ()
            return
        self.context[variable.name] = (value,)
        self._visit(variable.name, value)

    def _look_into_data(self, name: str, value: Any) -> None:
        if isinstance(value, enum.Enum):
            self._look_into_class(type(value))
        elif isinstance(value, dict):
            for key, each in value.items():
                self._visit(name, key)
                self._visit(key if isinstance(key, str) else name, each)
        elif isinstance(value, list | tuple | set | frozenset):
            self._look_at_all(name, value)
        elif dataclasses.is_dataclass(value) and not self._is_importable(type(value)):
            self._look_into_class(type(value))
            for key, each in vars(value).items():
                self._visit(key, each)
        else:
            raise InvalidInputError(
                f"{self.name} refers to {name}, which cannot travel "
                f"({type(value).__name__})",
                hint=_HINT,
            )


def _names_of(function: types.FunctionType) -> dict[str, Any]:
    """Return the values that a function finds by name: closure, globals, defaults."""
    found: dict[str, Any] = {}
    for name, cell in zip(
        function.__code__.co_freevars, function.__closure__ or (), strict=True
    ):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            raise InvalidInputError(
                f"{name} of {function.__name__} has no value yet",
                hint="assign it before the call",
            ) from None
    for name in global_names(function.__code__):
        if name in function.__globals__:
            value = function.__globals__[name]
            if getattr(builtins, name, None) is not value:
                found.setdefault(name, value)
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    found |= dict(
        zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True)
    )
    return found | (function.__kwdefaults__ or {})


def global_names(code: types.CodeType) -> set[str]:
    """Return the names that code, and code nested in it, may look up."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= global_names(constant)
    return names
