"""The parameters of a node: state, context, Send, results, arguments by name."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaError

from toolcell.core import GraphError, InvalidInputError

from ..values.context import NodeContext
from ..values.send import NUMBERED, Send, SendResult

_Role = Literal["state", "context", "send", "results", "argument", "rest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInputs:
    """The values that can fill the parameters of a node."""

    state: Any
    context: NodeContext | None
    send: Send | None = None
    results: Sequence[SendResult] | None = None


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    role: _Role
    required: bool
    by_position: bool
    adapter: TypeAdapter[Any] | None = None


class Signature:
    """The parameters of a node's function, by what they are filled with.

    Args:
        function: The node.
        state: The model of the graph's state.
        untyped: The type of parameters that have none; default: any argument.

    Raises:
        GraphError: A parameter cannot be filled.
    """

    def __init__(
        self, function: Callable[..., Any], state: type[BaseModel], untyped: Any = Any
    ) -> None:
        self._untyped = untyped
        self._name = getattr(function, "__name__", repr(function))
        hints = _hints(function, state)
        parameters = inspect.signature(function).parameters.values()
        self._parameters = [
            self._read(parameter, hints, state) for parameter in parameters
        ]
        roles = {parameter.role for parameter in self._parameters}
        self.arguments = [
            p.name for p in self._parameters if p.role == "argument" and p.required
        ]
        """The arguments that a Send has to give."""

        self.takes_results = "results" in roles
        """True if the node can be an aggregator."""

        self.takes_context = "context" in roles
        """True if it takes the context of its task."""

        self.takes_state = "state" in roles
        """True if it takes the state."""

    def _read(
        self, parameter: inspect.Parameter, hints: Mapping[str, Any], state: type[Any]
    ) -> _Parameter:
        annotation = hints.get(parameter.name, self._untyped)
        required = parameter.default is parameter.empty
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise self._problem(f"*{parameter.name} cannot be filled")
        by_position = parameter.kind is parameter.POSITIONAL_ONLY
        name, adapter = parameter.name, None
        if parameter.kind is parameter.VAR_KEYWORD:
            return _Parameter(name, "rest", False, False)
        role = _role(annotation, state)
        if role == "argument":
            try:
                adapter = TypeAdapter(annotation)
            except (PydanticUserError, SchemaError):
                raise self._problem(
                    f"the type of {name} cannot be stored as JSON"
                ) from None
        return _Parameter(name, role, required, by_position, adapter)

    def _problem(self, what: str) -> GraphError:
        return GraphError(
            f"the node {self._name!r} cannot be called: {what}",
            hint="annotate the state with its model; a Send gives JSON values by name",
            details={"problems": [f"{self._name}: {what}"]},
        )

    def described(self) -> list[list[str]]:
        """Return the names and roles of the parameters, for the shape of a graph."""
        return [[parameter.name, parameter.role] for parameter in self._parameters]

    def bind(self, inputs: NodeInputs) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a call, by position and by name.

        Raises:
            InvalidInputError: The payload of its Send does not fit.
        """
        payload = dict(inputs.send.payload) if inputs.send is not None else {}
        ready = {
            "state": inputs.state,
            "context": inputs.context,
            "send": inputs.send,
            "results": list(inputs.results or ()),
        }
        positional: list[Any] = []
        named: dict[str, Any] = {}
        takes_rest = False
        for parameter in self._parameters:
            if parameter.role == "rest":
                takes_rest = True
                continue
            if parameter.role != "argument":
                value = ready[parameter.role]
            elif parameter.name in payload:
                value = self._argument(parameter, payload.pop(parameter.name))
            elif parameter.required:
                raise self._misfit(f"the argument {parameter.name!r} is missing")
            else:
                continue
            if parameter.by_position:
                positional.append(value)
            else:
                named[parameter.name] = value
        if takes_rest:
            return positional, {**named, **payload}
        unknown = [name for name in payload if name not in NUMBERED]
        if unknown:
            raise self._misfit(f"it takes no {unknown[0]!r}")
        return positional, named

    def _argument(self, parameter: _Parameter, value: Any) -> Any:
        assert parameter.adapter is not None
        try:
            return parameter.adapter.validate_python(value)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            raise self._misfit(f"{parameter.name}: {first['msg']}") from None

    def _misfit(self, what: str) -> InvalidInputError:
        return InvalidInputError(
            f"a Send does not fit the node {self._name!r}: {what}",
            hint="look at the node's parameters and at the payload",
            details={"node": self._name},
        )


def _role(annotation: Any, state: type[Any]) -> _Role:
    if annotation is state or annotation is BaseModel:
        return "state"
    if annotation is NodeContext:
        return "context"
    if annotation is Send:
        return "send"
    if typing.get_origin(annotation) in (list, Sequence):
        if typing.get_args(annotation) == (SendResult,):
            return "results"
    return "argument"


def _hints(function: Callable[..., Any], state: type[Any]) -> dict[str, Any]:
    """Return annotations; names of this room need not be importable at the top."""
    function = unwrapped(function)
    known = {kind.__name__: kind for kind in (state, NodeContext, Send, SendResult)}
    closed = inspect.getclosurevars(function).nonlocals
    try:
        return typing.get_type_hints(
            function, localns={**closed, **known}, include_extras=True
        )
    except NameError as error:
        name = getattr(function, "__name__", repr(function))
        raise GraphError(
            f"the types of the node {name!r} cannot be read: {error}",
            hint="define them at the top of the module",
            details={"problems": [f"{name}: {error}"]},
        ) from None


def unwrapped(function: Callable[..., Any]) -> Any:
    """Return the function or method behind a partial, or an object that is called."""
    while isinstance(function, partial):
        function = function.func
    if inspect.isfunction(function) or inspect.ismethod(function):
        return function
    return type(function).__call__
