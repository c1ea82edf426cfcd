"""Bounds of one thread."""

from __future__ import annotations

from dataclasses import dataclass

from toolcell.core import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLimits:
    """Bounds of a thread. A thread that reached one can be resumed with a higher one.

    Raises:
        ConfigError: One is below 1.
    """

    max_steps: int = 1_000
    """Steps of one run or resume. When it is reached the thread fails."""

    max_tasks: int = 10_000
    """Tasks of one step. When a step would have more, the thread fails before any of
    them runs."""

    max_concurrency: int = 16
    """Tasks of a thread at once. When it is reached further ones wait."""

    max_operations: int = 10_000
    """Calls, values and questions of one task. When it is reached the next one fails
    the node."""

    state_bytes: int = 16 << 20
    """Bytes of the state as JSON. When a step would pass it, it is not committed and
    the thread fails."""

    record_bytes: int = 1 << 20
    """Bytes of the output of a task, and of a value of `once` or `ask`. When it is
    reached the task fails. A larger result of a tool is no failure, since its effect
    has happened: its size and first 8,000 characters stand for it."""

    question_bytes: int = 64 << 10
    """Bytes of a question's payload. When it is reached the task fails."""

    depth: int = 4
    """Graphs that a graph may be inside of. When it is reached the task of a further
    one fails."""

    def __post_init__(self) -> None:
        wrong = [name for name in self.__slots__ if getattr(self, name) < 1]
        if wrong:
            raise ConfigError(
                f"a limit must be at least 1: {', '.join(wrong)}",
                hint="leave it out for the default",
            )
