"""One node, many inputs: Sends, and their results."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeGuard

from pydantic import Field

from toolcell.core import InvalidInputError
from toolcell.core.models import FrozenModel

from .interrupt import current
from .json_values import Json, JsonObject

NUMBERED = ("index", "total")
"""Arguments that `scatter` adds; a worker that does not take one does not get it."""


def _new_id() -> str:
    asker = current.get()
    return secrets.token_hex(8) if asker is None else asker.send_id()


class Send(FrozenModel):
    """Start a task of a node with its own arguments.

    A node that returns a list of them fans out: each is a task of the next step.
    """

    node: str
    payload: JsonObject = Field(default_factory=dict)
    """The arguments that the node takes besides the state, by name."""

    send_id: str = Field(default_factory=_new_id)
    """Default: a new one; inside a node the same in every run of the node."""

    metadata: JsonObject = Field(default_factory=dict)

    def __init__(
        self, node: str, payload: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        """Check the values; node and payload may come by position.

        Raises:
            InvalidInputError: A value is no JSON, or there is no such field.
        """
        super().__init__(node=node, payload={} if payload is None else payload, **more)


class SendBatch(FrozenModel):
    """Sends whose results are collected.

    The output of a worker is no update of the state: it is the `result` of a
    `SendResult`. The aggregator runs in the step after theirs, with all results in the
    order of the sends.
    """

    sends: list[Send]
    source_node: str = ""
    aggregator_node: str | None = None
    """A node that takes `list[SendResult]`. None: the sends are ordinary tasks."""

    on_failure: Literal["fail", "collect"] = "fail"
    """`fail`: a failed worker fails the step, the others' results stay. `collect`: it
    is a result with `success=False`."""

    min_success: int | float | None = None
    """The successes that are needed when failures are collected: a count, or a share
    from 0.0 to 1.0. With fewer the step fails. None: any number will do."""

    @property
    def target_nodes(self) -> list[str]:
        """The nodes, each once, in the order of their first mention."""
        return list(dict.fromkeys(each.node for each in self.sends))

    @property
    def count(self) -> int:
        """The number of sends."""
        return len(self.sends)

    def group_by_node(self) -> dict[str, list[Send]]:
        """Return the sends of each node."""
        return {
            name: [each for each in self.sends if each.node == name]
            for name in self.target_nodes
        }


class SendResult(FrozenModel):
    """The result of one Send of a batch."""

    send_id: str
    node: str
    success: bool
    result: Json = None
    error: str | None = None
    """The failure, without the exception's text; None if it succeeded."""

    error_kind: str | None = None
    duration_ms: float | None = None


def send(node: str, payload: Mapping[str, Any] | None = None, /, **named: Any) -> Send:
    """Return one Send; a dict carries names that are taken, such as `node`."""
    return Send(node, {**(payload or {}), **named})


def broadcast(
    nodes: Iterable[str], payload: Mapping[str, Any] | None = None
) -> list[Send]:
    """Return a Send to each node, with the same payload."""
    return [Send(node, payload) for node in nodes]


def scatter(
    node: str, items: Iterable[Any], key: str = "item", include_index: bool = True
) -> list[Send]:
    """Return a Send for each item, `{key: item, "index": i, "total": n}`.

    Args:
        node: The node that works on the items.
        items: JSON values, or models, which become objects.
        key: The argument that takes the item.
        include_index: True, the default: `index`, from 0, and `total` stand beside it.

    Raises:
        InvalidInputError: An item has no JSON form, or the key is taken.
    """
    if include_index and key in NUMBERED:
        raise InvalidInputError(
            f"the key {key!r} is taken by scatter",
            hint="use another key, or include_index=False",
        )
    every = list(items)
    return [
        Send(
            node,
            {key: item, "index": index, "total": len(every)}
            if include_index
            else {key: item},
        )
        for index, item in enumerate(every)
    ]


def is_send(value: Any) -> TypeGuard[Send]:
    """Return whether a value is a Send."""
    return isinstance(value, Send)


def is_send_list(value: Any) -> TypeGuard[list[Send]]:
    """Return whether a value is a list of nothing but Sends; an empty one is."""
    return isinstance(value, list) and all(map(is_send, value))


def normalize_sends(value: Any) -> list[Send] | None:
    """Return one Send as a list of it, a list of Sends as it is, else None."""
    if is_send(value):
        return [value]
    return value if is_send_list(value) else None
