"""One kind of sandbox, as all measures see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

HELLO = "print(1)"

Run = Callable[[str], "str | Awaitable[str]"]
"""Runs a program in a sandbox and returns what it printed, at least its first line."""


class AbsentError(Exception):
    """The kind of sandbox has no such thing to measure; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of sandbox, by the shortest way that its documents show."""

    version: str
    open: Callable[[], AbstractAsyncContextManager[Run]]
    """Opens a new sandbox."""

    keeps_state: bool = False
    waits: str = HELLO
    """A program after which an open sandbox is idle."""

    idle: Callable[[int], AbstractAsyncContextManager[None]] | None = None
    """Has so many idle sandboxes, where opening them does not make so many."""

    prepared: int = 0
    """The number of sandboxes that are made ahead."""

    ready: Callable[[], Awaitable[None]] | None = None
    """Waits until those are there."""

    blocking: bool = False
    """True if its calls block, so that several at once need threads."""

    containers: bool = False
