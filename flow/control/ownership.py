"""A thread is claimed, run by its owner, and let go."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio

from toolcell.core import (
    CheckpointNotFoundError,
    StoreUnavailableError,
    ThreadBusyError,
    ToolcellError,
)

from ..execution.answers import CANCEL
from ..execution.components import FlowComponents, RunComponents
from ..execution.result import FlowResult
from ..execution.thread import ThreadView, view_of
from ..execution.writer import JournalWriter
from ..steps.runner import Runner
from ..steps.subgraph import GraphTask
from ..stores.base import Lease
from ..values.events import Answered, FlowEvent, Tell
from .cancelling import set_cancelled

T = TypeVar("T")
_log = logging.getLogger("toolcell.flow")
_BETWEEN_CLAIMS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of the caller of one run or resume."""

    tell: Tell | None = None
    """Gets the events of the run; None: nobody reads them."""

    wait_until: float = 0.0
    """The time of the event loop until which owners and answers are waited for."""

    steal: bool = False
    """True: take the thread from an owner that lives."""

    @classmethod
    def waiting(
        cls, seconds: float, *, tell: Tell | None = None, steal: bool = False
    ) -> RunOptions:
        """Return the options of a caller who waits for some seconds from now."""
        until = anyio.current_time() + seconds if seconds > 0 else 0.0
        return cls(tell=tell, wait_until=until, steal=steal)

    async def announce(self, event: FlowEvent) -> None:
        """Hand an event to the reader of the stream, if there is one."""
        if self.tell is not None:
            await self.tell(event)


async def owned(
    parts: FlowComponents,
    thread: str,
    work: Callable[[Lease, ThreadView], Awaitable[T]],
    options: RunOptions,
) -> T:
    """Do something as the owner of a thread, which is read after its claim."""
    lease = await _claimed(parts, thread, options)

    async def done() -> T:
        return await work(lease, await _read(parts, thread))

    return await releasing(parts, lease, done())


async def _read(parts: FlowComponents, thread: str) -> ThreadView:
    stored = await parts.checkpointer.read(thread)
    if stored is None:
        raise CheckpointNotFoundError(
            "the thread was deleted",
            hint="flow.threads() lists those that are there",
            details={"thread": thread},
        )
    return view_of(stored, parts.graph)


async def _claimed(parts: FlowComponents, thread: str, options: RunOptions) -> Lease:
    while True:
        try:
            return await parts.checkpointer.claim(thread, steal=options.steal)
        except ThreadBusyError:
            left = options.wait_until - anyio.current_time()
            if left <= 0:
                raise
        await anyio.sleep(min(left, _BETWEEN_CLAIMS))


async def releasing(parts: FlowComponents, lease: Lease, work: Awaitable[T]) -> T:
    """Do something, then release the lease, however it ended."""
    try:
        return await work
    finally:
        with anyio.CancelScope(shield=True):
            try:
                await parts.checkpointer.release(lease)
            except StoreUnavailableError:
                # Its store releases it later, or lets the lease run out.
                _log.warning("thread %s was not released yet", lease.thread_id)


def runner_of(
    parts: FlowComponents, lease: Lease, view: ThreadView, options: RunOptions
) -> Runner:
    """Return what runs the steps of a thread."""
    shared = RunComponents(
        flow=parts,
        lease=lease,
        agent=view.head.agent,
        run_id=f"{lease.thread_id}:{view.checkpoint.turn}",
        limiter=anyio.CapacityLimiter(parts.limits.max_concurrency),
        node_limiters=parts.graph.node_limiters(),
        writer=JournalWriter(parts.checkpointer, lease),
        graph_task=GraphTask,
        tell=options.tell,
        wait_until=options.wait_until,
    )
    return Runner(shared, view, tries_failed=view.head.status == "failed")


async def drive(
    parts: FlowComponents, lease: Lease, view: ThreadView, options: RunOptions
) -> FlowResult[Any]:
    """Run a thread until it pauses, fails or ends."""
    request = view.answers.get(CANCEL)
    by = None if request is None else request.by
    runner = runner_of(parts, lease, view, options)
    if by is None:
        for answer in view.answers.values():
            await options.announce(Answered(answer.id, answer.by))
        await runner.run()
        by = runner.cancelled_by
    if by is None:
        return result_of(view, runner.error)
    # A write may have been on its way when the run was cancelled.
    store, approvals = parts.checkpointer, parts.approvals
    await set_cancelled(store, approvals, lease, by=by, at=parts.clock())
    return result_of(await _read(parts, lease.thread_id))


def result_of(view: ThreadView, error: ToolcellError | None = None) -> FlowResult[Any]:
    """Return how a thread stands."""
    status = view.head.status
    return FlowResult(
        thread_id=view.head.thread_id,
        status="interrupted" if status == "running" else status,
        state=view.state.view(),
        checkpoint_id=view.checkpoint.id,
        waiting=view.interrupt_states(),
        error=view.head.error,
        exception=error,
    )
