"""Tools: functions and objects that a model may ask to be called."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Set
from functools import cached_property
from types import MappingProxyType
from typing import (
    Any,
    Generic,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)

import anyio.to_thread
from anyio import CapacityLimiter

from toolcell.core import ConfigError, InvalidInputError, ToolValidationError
from toolcell.core.text.canonical_json import canonical_digest
from toolcell.guard.spi import ANY_WAY, Via

from .context import ToolContext
from .docstrings import description_of, read_call, read_docstring
from .function_schema import FunctionSchema
from .json_schema import WrittenSchema
from .options import ARGUMENT_NAME, CheckedOptions, ToolOptions, check_options
from .result_schema import result_schema
from .signature import docstring_of, local_names, name_of, plain_function
from .transfer import check_transferable
from .validation import Arguments

P = ParamSpec("P")
R = TypeVar("R")
_MADE_OF_SIGNATURE = (
    "_schema",
    "_written_examples",
    "returns",
    "definition_hash",
    "takes_context",
)
_CALL = "__call__"
_NO_COST: Mapping[str, int | str] = MappingProxyType({})
_NOTHING: Mapping[str, Any] = MappingProxyType({"type": "null"})
_ANYTHING: Mapping[str, Any] = MappingProxyType({})


class _Schema(Protocol):
    """The parameters of a tool: made of a signature, or written by hand."""

    parameters: dict[str, Any]
    hints: dict[str, Any]
    contexts: tuple[str, ...]
    positional: tuple[str, ...]

    def validate(self, tool: str, arguments: Mapping[str, Any]) -> Arguments: ...


class Tool(ABC):
    """An action that a model may ask for by name. Subclass it, or write `@tool`.

    A subclass defines `execute`, async or not, and sets the attributes that differ from
    these defaults. The signature of `execute` makes the schema, unless `parameters` is
    set to a JSON Schema. The definition is checked when the class is defined, and as a
    whole by `check_definition` when the tool is registered; after that it does not
    change. `validate` and `call` are for executors: a tool called directly runs
    unguarded and unrecorded.
    """

    name: str = ""
    description: str = ""
    version: str = "1.0.0"
    idempotent: bool = False
    timeout: float | None = None
    """Seconds; when it is reached the call ends as `timeout`. None: the executor's."""

    cost: Mapping[str, int | str] = _NO_COST
    """The maximum that one call uses, by unit."""

    tags: Set[str] = frozenset()
    callers: Set[Via] = ANY_WAY
    """The callers that it accepts: `model`, `code` or both. The guard enforces it."""

    sandboxed: bool = False
    requires_approval: bool = False
    preview: Callable[..., Any] | None = None
    """Returns what a call would do as text, for people who approve it, from the call's
    arguments. It must change nothing. None: they see the arguments alone."""

    examples: tuple[Mapping[str, Any], ...] = ()
    strict: bool = True
    _written: Mapping[str, Any] | None = None
    _names: Mapping[str, Any] = MappingProxyType({})

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Check the definition.

        Raises:
            ConfigError: A name, an option or `execute` cannot be used.
        """
        super().__init_subclass__(**keywords)
        if "parameters" in cls.__dict__:
            cls._written = cls.__dict__["parameters"]
            del cls.parameters
        if getattr(cls.execute, "__isabstractmethod__", False):
            return
        if not inspect.isfunction(cls.execute):
            raise ConfigError(
                f"{cls.__name__}.execute is not a method",
                hint="write `def execute(self, ...)` or `async def`",
            )
        cls._names = local_names(cls.execute)
        if not cls.description:
            documented = cls.execute.__doc__ or cls.__dict__.get("__doc__")
            cls.description = description_of(cls.name or cls.__name__, documented)
        if cls.name or cls.__init__ is Tool.__init__:
            for option, value in check_options(cls.__name__, _options_of(cls)):
                setattr(cls, option, value)

    @abstractmethod
    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Do the work, and return a JSON value or a value with a JSON form.

        Raises:
            ToolError: For a failure that the model may read about.
        """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself: nothing is validated, guarded or recorded."""
        return self.execute(*args, **kwargs)

    def __setattr__(self, name: str, value: object) -> None:
        if name in CheckedOptions.model_fields and "_is_checked" in self.__dict__:
            raise AttributeError(f"{self.name} was checked, its {name} stays")
        super().__setattr__(name, value)

    @cached_property
    def _schema(self) -> _Schema:
        body = self._body
        if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise ConfigError(f"{self.name} is a generator", hint="return a list")
        if self._written is not None:
            return WrittenSchema(self.name, self._written, function=body)
        described = read_docstring(docstring_of(body)).parameters
        return FunctionSchema(
            body, described=described, strict=self.strict, namespace=self._names
        )

    @property
    def _body(self) -> Callable[..., Any]:
        return self.execute

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON Schema of the arguments, draft 2020-12. Do not change it.

        Raises:
            ConfigError: An annotation cannot be resolved, or has no JSON Schema.
        """
        return self._schema.parameters

    @cached_property
    def returns(self) -> dict[str, Any] | None:
        """The JSON Schema of the result, draft 2020-12; None if it is not annotated."""
        return result_schema(self._body, self._names)

    @property
    def usual_result(self) -> Mapping[str, Any]:
        """The JSON Schema of most results, for stubs alone; empty: anything."""
        annotations = getattr(plain_function(self._body), "__annotations__", {})
        if annotations.get("return", "") in (None, "None"):
            return _NOTHING
        return self.returns or _ANYTHING

    @cached_property
    def definition_hash(self) -> str:
        """The SHA-256 of the definition as models see it; it changes with any of it."""
        shown: dict[str, Any] = {
            "name": self.name,
            "version": self.version,
            "description": self.description,
            "schema": self.parameters,
        }
        return canonical_digest(shown)

    @property
    def source(self) -> str:
        """The place of the definition, as `module.name`."""
        return f"{type(self).__module__}.{type(self).__qualname__}"

    @cached_property
    def blocking(self) -> bool:
        """True if `execute` is a plain function, to be run off the event loop."""
        body = self._body
        is_async = inspect.iscoroutinefunction
        return not (is_async(body) or is_async(getattr(type(body), _CALL, None)))

    @cached_property
    def takes_context(self) -> bool:
        """True if the tool takes a `ToolContext`."""
        return bool(self._schema.contexts)

    def check_definition(self) -> None:
        """Check the whole definition, as a registry does with each tool.

        Raises:
            ConfigError: The name, an option, the schema or an example cannot be used.
        """
        check_options(self.source, _options_of(self))
        schema = self._schema
        if self.sandboxed:
            check_transferable(self.name, self._body, schema.hints)
        for example in self.examples:
            try:
                self.validate(example)
            except ToolValidationError as error:
                raise ConfigError(
                    f"an example of {self.name} is not valid: {error.message}",
                    hint="write the arguments as a call would give them",
                ) from None
        # From now on the definition stays as registry, guard and people have seen it.
        if "_is_checked" not in self.__dict__:
            self.__dict__.pop("definition_hash", None)
            self.__dict__["_is_checked"] = True

    def example_calls(self) -> tuple[Mapping[str, Any], ...]:
        """Return arguments to show to a model: `examples`, or else the docstring's.

        In a docstring a call behind `>>>` counts, if it calls this function with
        literals, and is valid.
        """
        return self.examples or self._written_examples

    @cached_property
    def _written_examples(self) -> tuple[Mapping[str, Any], ...]:
        contexts = self._schema.contexts
        names = [hint for hint in self._schema.hints if hint not in contexts]
        written = read_docstring(docstring_of(self._body)).examples
        read = [read_call(each, name_of(self._body), names) for each in written]
        return tuple(each for each in read if each is not None and self._fits(each))

    def _fits(self, arguments: Mapping[str, Any]) -> bool:
        try:
            self.validate(arguments)
        except ToolValidationError:
            return False
        return True

    def remarks(self) -> tuple[str, ...]:
        """Return the gaps in the definition that people should fill."""
        found = []
        if self.description == description_of(self.name, None):
            found.append("there is no description")
        for name, schema in self.parameters["properties"].items():
            about = schema if isinstance(schema, dict) else {}
            if not about.get("description"):
                found.append(f"parameter {name} is not described")
            if not set(about) - {"description", "default"}:
                found.append(f"parameter {name} has no type")
            if not ARGUMENT_NAME.fullmatch(name):
                found.append(f"the Messages API refuses the name of parameter {name}")
        return tuple(found)

    def validate(self, arguments: Mapping[str, Any]) -> Arguments:
        """Check the arguments of a call; nothing runs.

        Raises:
            ToolValidationError: They do not fit; its details name each field.
        """
        return self._schema.validate(self.name, arguments)

    def call(self, arguments: Arguments, context: ToolContext | None = None) -> Any:
        """Call `execute` right here; an async one returns its coroutine.

        Raises:
            InvalidInputError: The tool takes a context and there is none.
        """
        schema = self._schema
        if not (schema.contexts or schema.positional):
            return self.execute(**arguments.values)
        values = dict(arguments.values)
        for name in schema.contexts:
            if context is None:
                raise InvalidInputError(
                    f"{self.name} takes a ToolContext, give one",
                    hint="pass it as `context`",
                )
            values[name] = context
        first = [values.pop(name) for name in schema.positional if name in values]
        return self.execute(*first, **values)

    async def invoke(
        self,
        arguments: Arguments,
        context: ToolContext | None = None,
        *,
        limiter: CapacityLimiter | None = None,
    ) -> Any:
        """Run the tool and return its value; its exceptions are raised as they are.

        Args:
            arguments: From `validate`.
            context: For tools that take one.
            limiter: Bounds the worker threads of plain functions; None: the loop's.
        """
        if not self.blocking:
            return await self.call(arguments, context)
        result = await anyio.to_thread.run_sync(
            self.call, arguments, context, limiter=limiter
        )
        return await result if inspect.isawaitable(result) else result


def _options_of(definition: Tool | type[Tool]) -> dict[str, Any]:
    return {
        option: getattr(definition, option) for option in CheckedOptions.model_fields
    }


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
