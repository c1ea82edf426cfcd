"""Reducers, which merge an update into a field: their lookup and the built-in ones.

A reducer gets the current value and an update and returns the merged value. It changes
neither. The laws in the docstrings hold for every value of its type and are tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, Protocol, TypeVar, overload

from toolcell.core import GraphError, Message

from ..values.json_values import json_bytes, jsonable

T = TypeVar("T")
_F = TypeVar("_F", bound=Callable[..., Any])

REMOVE_ALL_MESSAGES: Final = "__remove_all__"
"""An element of an update of `add_messages` that removes all messages before it."""

_UPDATE = "__toolcell_update__"


class Reducer(Protocol[T]):
    """Merges an update into the current value, and changes neither."""

    def __call__(self, current: T, update: T, /) -> T:
        """Return the merged value."""
        ...


@overload
def reducer(function: _F) -> _F: ...
@overload
def reducer(*, update: Any = None) -> Callable[[_F], _F]: ...
def reducer(function: Any = None, *, update: Any = None) -> Any:
    """Mark a function as a reducer, and say what an update may be.

    Args:
        function: `(current, update) -> merged`.
        update: The type of an update. None: the type of the field.
    """

    def mark(marked: _F) -> _F:
        setattr(marked, _UPDATE, update)
        return marked

    return mark if function is None else mark(function)


def update_type(merge: Any) -> Any:
    """Return the type of a reducer's updates; None: the type of its field."""
    return getattr(merge, _UPDATE, None)


def find_reducer(metadata: Iterable[Any]) -> Callable[[Any, Any], Any] | None:
    """Return the one reducer among what stands beside a type, else None.

    Raises:
        GraphError: There are two.
    """
    found = [item for item in metadata if callable(item) and not isinstance(item, type)]
    if len(found) > 1:
        names = ", ".join(getattr(item, "__name__", repr(item)) for item in found)
        raise GraphError(
            f"a field has {len(found)} reducers: {names}",
            hint="keep one of them",
            details={"problems": [f"two reducers: {names}"]},
        )
    return found[0] if found else None


def get_reducer(annotation: Any) -> Callable[[Any, Any], Any] | None:
    """Return the reducer of `Annotated[T, reducer]`, else None.

    Raises:
        GraphError: It has two.
    """
    return find_reducer(getattr(annotation, "__metadata__", ()))


def apply_reducers(
    current: Mapping[str, Any],
    update: Mapping[str, Any],
    reducers: Mapping[str, Callable[[Any, Any], Any]],
) -> dict[str, Any]:
    """Return the current values with an update; the arguments stay as they are.

    Args:
        current: Values by name.
        update: The new values, by name.
        reducers: By name; without one the update takes the place of the value, as it
            does where there is no value yet.
    """
    merged = dict(current)
    for name, value in update.items():
        merge = reducers.get(name)
        known = merge is not None and name in current
        merged[name] = merge(current[name], value) if merge and known else value
    return merged


_Update = Message | Literal["__remove_all__"]


@reducer(update=_Update | list[_Update])
def add_messages(current: Any, update: Any) -> Any:
    """Append messages; one with the id of an earlier one takes its place.

    `REMOVE_ALL_MESSAGES` empties what came before it. One message alone is fine. Ids
    are never made. Associative over batches; nothing to add changes nothing.
    """
    alone = isinstance(update, Message) or update == REMOVE_ALL_MESSAGES
    merged = list(current)
    places = {
        message.id: n for n, message in enumerate(merged) if message.id is not None
    }
    for message in [update] if alone else update:
        if isinstance(message, str):
            merged, places = [], {}
        elif message.id is not None and message.id in places:
            merged[places[message.id]] = message
        else:
            if message.id is not None:
                places[message.id] = len(merged)
            merged.append(message)
    return type(current)(merged)


@reducer
def append_list(current: Any, update: Any) -> Any:
    """Append; a list or a tuple, as the current value is. Associative."""
    return type(current)((*current, *update))


@reducer
def unique_append_list(current: Any, update: Any) -> Any:
    """Append what is not there, in order of first appearance.

    Values that cannot be hashed are compared by their JSON. Associative, idempotent.
    """
    merged: dict[Any, Any] = {}
    for message in (*current, *update):
        merged.setdefault(_identity(message), message)
    return type(current)(merged.values())


def _identity(value: Any) -> Any:
    try:
        return type(value), hash(value), value
    except TypeError:
        return json_bytes(jsonable(value))


@reducer
def merge_dict(current: Any, update: Any) -> Any:
    """Merge one level of two dicts; later keys win. Associative, idempotent."""
    return {**current, **update}


@reducer
def deep_merge_dict(current: Any, update: Any) -> Any:
    """Merge dicts in dicts; other values are replaced. Idempotent.

    Associative where a key holds dicts in all three values, or in none.
    """
    merged = dict(current)
    for key, value in update.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = deep_merge_dict(merged[key], value) if both else value
    return merged


@reducer
def add_numbers(current: Any, update: Any) -> Any:
    """Add. Associative and commutative on `int` and `Decimal`, not on `float`."""
    return current + update


@reducer
def max_value(current: Any, update: Any) -> Any:
    """Keep the larger one. Associative, commutative, idempotent."""
    return max(current, update)


@reducer
def min_value(current: Any, update: Any) -> Any:
    """Keep the smaller one. Associative, commutative, idempotent."""
    return min(current, update)


@reducer
def last_value(current: Any, update: Any) -> Any:
    """Take the update; of several tasks the last one's. Associative, idempotent."""
    return update


@reducer
def first_value(current: Any, update: Any) -> Any:
    """Keep what stood before the step. Associative, idempotent."""
    return current


@reducer
def set_union(current: Any, update: Any) -> Any:
    """Keep what is in either. Associative, commutative, idempotent."""
    return current | update


@reducer
def set_intersection(current: Any, update: Any) -> Any:
    """Keep what is in both. Associative, commutative, idempotent."""
    return current & update
