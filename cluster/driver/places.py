"""Nodes with a link, and places on them."""

from __future__ import annotations

import math
from typing import Any

from toolcell.sandbox import SandboxConfig
from toolcell.sandbox.spi import FairQueue

from ..directory.records import NodeRecord
from ..wire.link import Link

_MAX_PLACES = 1_000_000


class Node:
    """A node with a link: what it grants, and how much of that is in use."""

    def __init__(self, record: NodeRecord, link: Link, about: dict[str, Any]) -> None:
        self.record = record
        self.link = link
        self.slots = _places(about["slots"])
        self.rules = SandboxConfig.model_validate(about["rules"])
        self.notices = tuple(map(str, about["notices"]))
        self.image = str(about["image"])
        """The image of its cells; empty where they have none."""

        self.held: set[Place] = set()
        """The places in use; those of a lost node are given back."""

        self.load = 0.0
        """The part of the credit in use."""

        self.is_lost = False
        self.update(about)

    def update(self, status: dict[str, Any]) -> None:
        """Take what the node says of itself, now or again."""
        self.credit = _places(status["credit"])
        """Runs and sessions that this driver may have there at once."""

        self.state = str(status["state"])
        """`ready`, `draining` or `sick`; the last two have no credit."""

        self.problem = str(status["problem"])
        """The reason why it is sick, in its words."""

        self.reason = str(status["reason"])
        """The same in a word, such as `image_missing`; empty: there is none."""

        self.packages = frozenset(
            tuple(map(str, package)) for package in status["packages"]
        )
        """Sets of packages that are installed there, each sorted."""

        self.weigh()

    @property
    def in_use(self) -> int:
        """The number of places in use."""
        return len(self.held)

    def weigh(self) -> None:
        """Find the load anew, when places or credit have changed."""
        self.load = self.in_use / self.credit if self.credit else math.inf


def _places(number: object) -> int:
    """Return a number of places that a node reports. Raises ValueError."""
    if type(number) is not int or not 0 <= number <= _MAX_PLACES:
        raise ValueError("no number of places")
    return number


class Place:
    """A place on a node, for a run or a session; leaving it gives it back.

    Args:
        node: The node.
        queue: Those who wait for a place.
        entered: When it was taken.
    """

    def __init__(self, node: Node, queue: FairQueue, entered: float) -> None:
        self.node = node
        """The node that it is on."""

        self._queue = queue
        self._entered = entered
        node.held.add(self)
        node.weigh()

    def __enter__(self) -> Node:
        return self.node

    def __exit__(self, *_: object) -> None:
        if not self.node.is_lost:
            self.node.held.discard(self)
            self.node.weigh()
            self.give_back()

    def give_back(self) -> None:
        """Let whoever waits have it."""
        self._queue.leave(self._entered)
