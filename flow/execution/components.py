"""The components that all tasks of a thread share while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import anyio
from anyio.abc import TaskGroup

from toolcell.guard import Approvals
from toolcell.tools import ToolExecutor

from ..graph.graph import Graph
from ..stores.base import Lease
from ..stores.checkpointer import Checkpointer
from ..stores.records import JournalRecord
from ..values.events import FlowEvent, Tell
from ..values.handlers import InterruptHandler
from ..values.limits import FlowLimits
from .journal import TaskJournal
from .writer import JournalWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowComponents:
    """The components that a Flow was made with."""

    graph: Graph[Any]
    shape: str
    """The shape of the graph, computed once because that is slow."""

    checkpointer: Checkpointer
    executor: ToolExecutor | None
    session: str | None
    handler: InterruptHandler | None
    handler_seconds: float
    approval_seconds: float
    in_doubt: Literal["ask", "tell"]
    limits: FlowLimits
    clock: Callable[[], datetime]
    outer: tuple[Graph[Any], ...] = ()
    """The graphs that this one is inside of, the outermost first."""

    @property
    def approvals(self) -> Approvals | None:
        """The approvals of the executor's guard; None: it has none."""
        guard = None if self.executor is None else self.executor.guard
        return None if guard is None else guard.approvals


@dataclass(slots=True, kw_only=True)
class RunComponents:
    """One thread in the hands of its owner."""

    flow: FlowComponents
    lease: Lease
    agent: str | None
    run_id: str
    limiter: anyio.CapacityLimiter
    """Has a place for each of the thread's tasks that may run at once."""

    node_limiters: dict[str, anyio.CapacityLimiter] = field(default_factory=dict)
    """The limiters of nodes with a `max_concurrency`, by the node's name."""

    writer: JournalWriter
    group: TaskGroup | None = None
    """The task group of the run, in which calls end also if their nodes do not."""

    calls_in_flight: set[anyio.Event] = field(default_factory=set)
    """The ends of calls that have begun."""

    graph_task: Any
    """The class of the tasks whose nodes are graphs."""

    tell: Tell | None = None
    """Hands an event to the reader of a stream; None: nobody reads."""

    wait_until: float = 0.0
    """The time of the event loop until which answers of others are waited for."""

    async def announce(self, event: FlowEvent) -> None:
        """Hand an event to the reader of the stream, if there is one."""
        if self.tell is not None:
            await self.tell(event)

    async def write(
        self, journal: TaskJournal, *records: JournalRecord, lasting: bool = False
    ) -> None:
        """Store records of a task; see `JournalWriter.write`."""
        await self.writer.write(journal, records, lasting=lasting)
