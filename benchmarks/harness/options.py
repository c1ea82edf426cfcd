"""The options of a benchmark, which each row gets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from harness.measure import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command line."""

    runs: int
    image: str


RowMaker = Callable[[Options], Awaitable[list[Row]]]
