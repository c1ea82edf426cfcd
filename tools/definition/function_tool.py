"""Functions as tools: `@tool` and `FunctionTool`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, Unpack, overload

from toolcell.core import ConfigError

from .docstrings import description_of
from .options import ToolOptions, check_options
from .signature import docstring_of, local_names, name_of, plain_function
from .tool import Tool

P = ParamSpec("P")
R = TypeVar("R")
_MADE_OF_SIGNATURE = (
    "_schema",
    "_written_examples",
    "returns",
    "definition_hash",
    "takes_context",
)


class FunctionTool(Tool, Generic[P, R]):
    """A function as a tool; it still calls like the function.

    Args:
        function: A function, bound method, closure, partial, class method or other
            callable, async or not. Parameters of type `ToolContext` are filled by
            the executor and not shown to the model.
        **options: See `ToolOptions`.

    Raises:
        ConfigError: An option or the function cannot be used.
    """

    function: Callable[P, R]

    def __init__(
        self, function: Callable[P, R], **options: Unpack[ToolOptions]
    ) -> None:
        if isinstance(function, FunctionTool):
            function = function.function
        if isinstance(function, staticmethod):
            function = function.__func__
        # A class method is called by way of its class, see `__get__`.
        is_classmethod = isinstance(function, classmethod)
        body: Any = getattr(function, "__func__", None) if is_classmethod else function
        if not callable(body):
            raise ConfigError(
                f"an object of type {type(function).__name__} is not a function",
                hint="give a function, a method or an object that can be called",
            )
        given: dict[str, Any] = dict(options)
        written = given.pop("parameters", None)
        given["name"] = given.get("name") or name_of(body)
        given.setdefault(
            "description", description_of(given["name"], docstring_of(body))
        )
        for attribute in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(body, attribute):
                self.__dict__[attribute] = getattr(body, attribute)
        self.__dict__.update(check_options(_source_of(body), given))
        self.__dict__.update(
            function=function,
            _written=written,
            _names=local_names(body),
            __wrapped__=body,
        )

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a tool does not change; make another with FunctionTool")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a tool does not change; make another with FunctionTool")

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Return the tool of a method, bound to its object."""
        getter = getattr(self.function, "__get__", None)
        if getter is None or inspect.ismethod(self.function):
            return self
        bound = getter(instance, owner)
        if bound is self.function:
            return self
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, function=bound, __wrapped__=bound)
        for made_of_signature in _MADE_OF_SIGNATURE:
            made.__dict__.pop(made_of_signature, None)
        return made

    def __repr__(self) -> str:
        return f"<tool {self.name} {self.version} of {self.source}>"

    def execute(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def _body(self) -> Callable[..., Any]:
        return self.function

    @property
    def source(self) -> str:
        return _source_of(self.function)


@overload
def tool(
    function: Callable[P, R], /, **options: Unpack[ToolOptions]
) -> FunctionTool[P, R]: ...


@overload
def tool(
    **options: Unpack[ToolOptions],
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(function: Any = None, /, **options: Unpack[ToolOptions]) -> Any:
    """Make a tool of a function: `@tool`, `@tool()` or `@tool(name="...", ...)`.

    Args:
        function: The function that the tool calls.
        **options: See `ToolOptions`; an unknown one is refused.

    Raises:
        ConfigError: An option or the function cannot be used.
    """
    if function is not None:
        return FunctionTool(function, **options)
    check_options("@tool", {"name": "tool"} | _without_schema(options))
    return functools.partial(tool, **options)


def as_tool(given: Tool | Callable[..., Any], **options: Unpack[ToolOptions]) -> Tool:
    """Return a tool as it is, and anything else that is callable as a tool.

    Raises:
        ConfigError: It is a tool already and options are given, or it is no function.
    """
    # What a class method of Python 3.13 on is bound to.
    if inspect.ismethod(given) and isinstance(given.__func__, FunctionTool):
        given = given.__func__.__get__(given.__self__)
    if isinstance(given, type) and issubclass(given, Tool):
        raise ConfigError(
            f"{given.__name__} is a class of tools", hint="give an object of it"
        )
    if not isinstance(given, Tool):
        return FunctionTool(given, **options)
    if options:
        raise ConfigError(
            f"{given.name} is a tool already, with its own options",
            hint="leave the options out, or make a tool of its function",
        )
    return given


def _without_schema(options: ToolOptions) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != "parameters"}


def _source_of(function: Callable[..., Any]) -> str:
    plain = plain_function(function)
    module = getattr(plain, "__module__", None) or type(plain).__module__
    return f"{module}.{getattr(plain, '__qualname__', name_of(plain))}"
