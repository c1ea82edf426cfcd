"""A state's fields: their types and reducers, and values that nodes cannot spoil.

A field whose type cannot be changed in place is handed out as it is. Any other one is
stored as JSON alone, and decoded again for each reader.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import operator
import types
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, SchemaError

from toolcell.core import GraphError, InvalidInputError
from toolcell.core.models import construct_unchecked

from .patch import Pieces, join, split
from .reducers import find_reducer, update_type

_IMMUTABLE = (
    *(str, int, float, bool, type(None), Decimal, UUID),
    *(date, datetime, time, timedelta),
)
_CONTAINERS = (list, tuple, dict, set, frozenset)
_JSON = (str, int, float, bool, type(None))
"""Types whose values are JSON as they are."""


class Field:
    """One field of a state.

    Args:
        name: Its name.
        annotation: Its type, with what stands beside it.
        merge: Its reducer; None: an update takes its place.
    """

    def __init__(
        self, name: str, annotation: Any, merge: Callable[[Any, Any], Any] | None
    ) -> None:
        self.name = name
        self.merge = merge
        self.immutable = is_immutable(annotation)
        self._grows = self.immutable and _is_sequence(annotation)
        taken = update_type(merge)
        self._type = _Type(annotation)
        self._update = self._type if taken is None else _Type(taken)

    def encode(self, value: Any, before: tuple[Any, Pieces] | None = None) -> Pieces:
        """Return a value in pieces.

        Args:
            value: A value of the field's type.
            before: An older value and its pieces: of a tuple that has grown only the
                new elements are encoded.

        Raises:
            ValueError: It has no JSON form.
        """
        if self._grows and before is not None and isinstance(before[1], tuple):
            old, pieces = before
            if isinstance(old, tuple) and _begins_with(value, old):
                return (*pieces, *self._type.encode(value[len(old) :]))
        return self._type.encode(value)

    def decode(self, pieces: Pieces) -> Any:
        """Return the value of pieces, checked by the field's type.

        Raises:
            ValueError: They do not fit.
        """
        return self._type.read(join(pieces))

    def check(self, value: Any) -> Any:
        """Return a merged value, checked by the field's type. Raises ValueError."""
        return self._type.check(value)

    def encode_update(self, value: Any) -> Pieces:
        """Return an update in pieces, checked by its type.

        Raises:
            ValueError: It does not fit, or its JSON would be read as another value.
        """
        return self._update.encode_exactly(self._update.check(value))

    def encode_start(self, value: Any) -> Pieces:
        """Return a first value in pieces. Raises ValueError, as `encode_update`."""
        return self._type.encode_exactly(value)

    def decode_update(self, pieces: Pieces) -> Any:
        """Return the update of pieces, checked by its type. Raises ValueError."""
        return self._update.read(join(pieces))

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the field's values."""
        return self._type.schema()


class _Type:
    """A type of values, which checks, writes and reads them.

    Without the adapter around the validator a step in memory takes a tenth less.
    """

    def __init__(self, annotation: Any) -> None:
        adapter = _adapter(annotation)
        self.check = adapter.validator.validate_python
        """Returns a value as one of the type. Raises ValueError."""

        # Fields have one name there, however many aliases they are given by.
        self.read = partial(
            adapter.validator.validate_json, by_alias=False, by_name=True
        )
        """Returns the value of a JSON text. Raises ValueError."""

        self.schema = adapter.json_schema
        self._dump = adapter.serializer.to_python
        self._is_json = annotation in _JSON
        self._is_exact = _is_exact(annotation)

    def encode_exactly(self, value: Any) -> Pieces:
        """Return a value in pieces that are read as the same value again.

        Raises:
            ValueError: They would be another one: of a parent class, another member of
                a union, or without a part that its JSON leaves out.
        """
        pieces = self.encode(value)
        if not (self._is_exact or is_same(self.read(join(pieces)), value)):
            raise ValueError("stored as JSON it would be read as another value")
        return pieces

    def encode(self, value: Any) -> Pieces:
        """Return a value of the type in pieces. Raises ValueError."""
        if self._is_json:
            return split(value)
        dumped = self._dump(
            value, mode="json", by_alias=False, round_trip=True, warnings="error"
        )
        pieces = split(dumped)
        if isinstance(value, set | frozenset) and isinstance(pieces, tuple):
            # The order of a set is another one in each process.
            return tuple(sorted(pieces))
        return pieces


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        # Else NaN inside of Any would silently become null.
        config = ConfigDict(ser_json_inf_nan="constants")
        return TypeAdapter(annotation, config=config)
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":
            raise
        # A model has its own configuration.
        return TypeAdapter(annotation)


def _is_exact(annotation: Any) -> bool:
    """Return True if every value of a type is read from its JSON as it was."""
    if annotation in _IMMUTABLE or annotation in (Any, None):
        return True
    arguments = [argument for argument in get_args(annotation) if argument is not ...]
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        # Another member may read the JSON of one, but for null.
        left = [argument for argument in arguments if argument is not type(None)]
        return len(left) == 1 and _is_exact(left[0])
    return origin in _CONTAINERS and all(map(_is_exact, arguments))


def is_same(one: Any, other: Any) -> bool:
    """Return True if two values are of the same types and the same, also in NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            is_same(one[key], other[key]) for key in one
        )
    if isinstance(one, BaseModel) or dataclasses.is_dataclass(one):
        return is_same(vars(one), vars(other))
    # Objects without their own equality cannot be compared.
    is_opaque = getattr(type(one), "__eq__", None) is object.__eq__
    return is_opaque or bool(one == other) or one != one


def _is_sequence(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return _is_sequence(get_args(annotation)[0])
    return get_origin(annotation) is tuple and get_args(annotation)[-1:] == (...,)


def _begins_with(value: tuple[Any, ...], old: tuple[Any, ...]) -> bool:
    return len(value) >= len(old) and all(map(operator.is_, value, old))


def is_immutable(annotation: Any) -> bool:
    """Return whether no value of a type can be changed in place, by its annotation."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return is_immutable(get_args(annotation)[0])
    if origin is Literal:
        return True
    if origin in (tuple, frozenset, Union, types.UnionType):
        inner = [argument for argument in get_args(annotation) if argument is not ...]
        return all(map(is_immutable, inner))
    if not isinstance(annotation, type):
        return annotation is None
    if issubclass(annotation, BaseModel):
        return bool(annotation.model_config.get("frozen"))
    return annotation in _IMMUTABLE or issubclass(annotation, enum.Enum)


class Schema:
    """The fields of a state's model.

    Args:
        model: The user's.

    Raises:
        GraphError: A field has no JSON form, or two reducers.
    """

    def __init__(self, model: type[BaseModel]) -> None:
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise GraphError(
                "the state of a graph is a pydantic model",
                hint="class State(BaseModel): ...",
                details={"problems": ["the state is no pydantic model"]},
            )
        self.model = model
        after: Any = getattr(model, "__pydantic_post_init__", None)
        extra = model.model_config.get("extra")
        self._is_bare = after is None and extra != "allow"
        """True if a model is no more than its fields."""

        self.fields: dict[str, Field] = {}
        for name, info in model.model_fields.items():
            merge = find_reducer(info.metadata)
            beside = [item for item in info.metadata if item is not merge]
            annotation: Any = info.annotation
            for item in beside:
                annotation = Annotated[annotation, item]
            try:
                field = Field(name, annotation, merge)
                schema = field.schema()
            except (PydanticUserError, SchemaError) as error:
                raise GraphError(
                    f"the field {name!r} of {model.__name__} cannot be stored as JSON",
                    hint="use types that pydantic writes as JSON",
                    details={"problems": [f"{name}: no JSON form"]},
                ) from error
            if '"writeOnly": true' in json.dumps(schema, default=str):
                raise GraphError(
                    f"the field {name!r} of {model.__name__} holds a secret, of which"
                    " JSON has only asterisks",
                    hint="keep secrets out of states; tools read them by name",
                    details={"problems": [f"{name}: a secret"]},
                )
            self.fields[name] = field

    def start(self, value: Any) -> dict[str, Pieces]:
        """Return a new state in pieces.

        Raises:
            InvalidInputError: The values do not make one.
        """
        try:
            state = (
                value
                if isinstance(value, self.model)
                else self.model.model_validate(value)
            )
            encoded = {
                name: field.encode_start(getattr(state, name))
                for name, field in self.fields.items()
            }
            self.decode(encoded)
        except (ValueError, PydanticSerializationError) as error:
            raise InvalidInputError(
                f"this is no {self.model.__name__}: {_problem(error)}",
                hint="give the fields of the state",
            ) from None
        return encoded

    def decode(self, pieces: Mapping[str, Pieces]) -> Any:
        """Return a state of the user's model. Raises ValueError."""
        values = {name: field.decode(pieces[name]) for name, field in self.of(pieces)}
        return self.construct(values)

    def construct(self, values: dict[str, Any]) -> Any:
        """Return a state of the user's model, of values that were checked."""
        if self._is_bare:
            return construct_unchecked(self.model, values, set(values))
        return self.model.model_construct(**values)

    def of(self, pieces: Mapping[str, Pieces]) -> list[tuple[str, Field]]:
        """Return the fields that pieces are of. Raises ValueError: not those."""
        if pieces.keys() != self.fields.keys():
            raise ValueError(self._misfit(pieces))
        return [(name, self.fields[name]) for name in pieces]

    def _misfit(self, pieces: Mapping[str, Pieces]) -> str:
        unknown = sorted(pieces.keys() - self.fields.keys())
        if unknown:
            return f"the state has no field {unknown[0]!r} any more"
        missing = sorted(self.fields.keys() - pieces.keys())
        return f"the stored state has no field {missing[0]!r}"

    def encode_update(self, update: Mapping[str, Any], node: str) -> dict[str, Pieces]:
        """Return the update of a node, in pieces.

        Raises:
            InvalidInputError: A field is unknown, or a value does not fit it.
        """
        return {name: self._encoded(name, update[name], node) for name in update}

    def _encoded(self, name: str, value: Any, node: str) -> Pieces:
        field = self.fields.get(name)
        if field is None:
            raise InvalidInputError(
                f"node {node!r} updates {name!r}, which is no field of the state",
                hint=f"fields: {', '.join(self.fields)}",
                details={"node": node, "field": name},
            )
        try:
            return field.encode_update(value)
        except (ValueError, PydanticSerializationError) as error:
            raise InvalidInputError(
                f"node {node!r} updates {name!r} with what it cannot be:"
                f" {_problem(error)}",
                hint="look at the field's type, and at what its reducer takes",
                details={"node": node, "field": name},
            ) from None


def _problem(error: ValueError) -> str:
    """Return what is wrong, without the values, which may be secrets."""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place}: {first['msg']}" if place else first["msg"]
    return str(error)
