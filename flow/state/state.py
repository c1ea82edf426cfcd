"""One state of a thread: stored as JSON, merged from the updates of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from toolcell.core import FlowConflictError, NodeFailedError

from .fields import Field, Schema
from .patch import Pieces, diff, join, size_of, value_of


class Update(NamedTuple):
    """The changes that one task returned, by field."""

    task_id: str
    node: str
    fields: Mapping[str, Pieces]
    replaces: bool = False
    """True if its values replace those of fields that have a reducer."""


class State:
    """The state after a step. It never changes.

    Args:
        schema: Its fields.
        pieces: Each of them as JSON.
        values: Of fields that cannot be changed in place, as far as they are known.
    """

    def __init__(
        self,
        schema: Schema,
        pieces: Mapping[str, Pieces],
        values: Mapping[str, Any] | None = None,
    ) -> None:
        self.schema = schema
        self.pieces = pieces
        self._values = dict(values or {})

    def view(self) -> Any:
        """Return it as the user's model; changing what is in it changes nothing else.

        Raises:
            ValueError: The stored state does not fit the model.
        """
        named = self.schema.of(self.pieces)
        values = {name: self._value(field) for name, field in named}
        return self.schema.construct(values)

    def _value(self, field: Field) -> Any:
        if field.name in self._values:
            return self._values[field.name]
        value = field.decode(self.pieces[field.name])
        if field.immutable:
            self._values[field.name] = value
        return value

    @property
    def size(self) -> int:
        """The size of its values as JSON, in bytes, without names and separators."""
        return sum(map(size_of, self.pieces.values()))

    def texts(self) -> dict[str, bytes]:
        """Return each field as JSON text."""
        return {name: join(pieces) for name, pieces in self.pieces.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the fields that there are as JSON values."""
        return {name: value_of(pieces) for name, pieces in self.pieces.items()}

    def changes(self, newer: State) -> dict[str, bytes]:
        """Return the patch of each field that differs in a newer state."""
        found = {
            name: diff(self.pieces[name], newer.pieces[name]) for name in newer.pieces
        }
        return {name: patch for name, patch in found.items() if patch is not None}

    def merged(self, updates: Sequence[Update]) -> State:
        """Return the state after the updates of a step, in the order of its tasks.

        Raises:
            FlowConflictError: Two tasks wrote a field that has no reducer.
            NodeFailedError: A reducer raised, or what it returned does not fit.
        """
        writers = _writers(updates)
        pieces, values = dict(self.pieces), dict(self._values)
        for name, written in writers.items():
            field = self.schema.fields[name]
            plain = field.merge is None or any(write.replaces for write in written)
            if plain and len(written) > 1:
                raise _conflict(name, written)
            if plain:
                pieces[name] = written[0].fields[name]
                value = field.decode(pieces[name])
                if field.immutable:
                    values[name] = value
                continue
            value = self._reduced(field, written)
            before = None
            if field.immutable:
                before = self._values.get(name), self.pieces[name]
                values[name] = value
            pieces[name] = field.encode(value, before)
        return State(self.schema, pieces, values)

    def _reduced(self, field: Field, written: Sequence[Update]) -> Any:
        assert field.merge is not None
        value = self._value(field)
        for write in written:
            try:
                update = field.decode_update(write.fields[field.name])
                value = field.merge(value, update)
            except Exception as error:
                raise _reducer_failed(field.name, write, error) from error
        try:
            return field.check(value)
        except ValueError as error:
            raise _reducer_failed(field.name, written[-1], error) from error


def _writers(updates: Iterable[Update]) -> dict[str, list[Update]]:
    writers: dict[str, list[Update]] = {}
    for update in updates:
        for name in update.fields:
            writers.setdefault(name, []).append(update)
    return writers


def _conflict(name: str, written: Sequence[Update]) -> FlowConflictError:
    nodes = " and ".join(f"{write.node} ({write.task_id})" for write in written[:2])
    return FlowConflictError(
        f"{nodes} both wrote {name!r} in one step",
        hint="give the field a reducer; last_value lets the last task win",
        details={"field": name, "tasks": [write.task_id for write in written]},
    )


def _reducer_failed(name: str, update: Update, error: Exception) -> NodeFailedError:
    return NodeFailedError(
        f"the reducer of {name!r} failed with {type(error).__name__}",
        hint="the log of toolcell.flow says why",
        details={
            "field": name,
            "task": update.task_id,
            "node": update.node,
            "exception": type(error).__name__,
        },
    )
