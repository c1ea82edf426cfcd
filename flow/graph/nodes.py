"""The parts of a graph: its nodes, and the ways between them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from toolcell.tools import RetryPolicy

from ..values.send import Send
from .signature import Signature, unwrapped

Chosen = str | Send | Sequence[str | Send] | None


@dataclass(frozen=True, slots=True)
class Child:
    """A graph that is a node of another one."""

    graph: Any
    """The inner `Graph`."""

    leave: Callable[[Any], Any] | None
    """Makes the output of the node from the last state of the inner graph; None: its
    fields that changed replace those of the outer graph."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A function of a graph, or a graph in it, with its retries and limits."""

    name: str
    function: Callable[..., Any]
    """The node; of an inner graph, what makes its first state."""

    signature: Signature
    retry: RetryPolicy | None
    timeout: float | None
    max_concurrency: int | None
    child: Child | None = None

    @cached_property
    def is_async(self) -> bool:
        """True if it runs on the event loop; others run in worker threads."""
        target = unwrapped(self.function)
        return inspect.iscoroutinefunction(target)


@dataclass(frozen=True, slots=True)
class Route:
    """A choice after a step, and the targets that it may choose."""

    choose: Callable[[Any], Chosen]
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """A target that runs once each of its sources has ended."""

    sources: tuple[str, ...]
    target: str

    @property
    def key(self) -> str:
        """The name of the join in checkpoints."""
        return f"{'+'.join(self.sources)}>{self.target}"
