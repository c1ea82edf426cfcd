"""One task: a node with its arguments, tried until it returns, asks or fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import copy_context
from functools import cached_property, partial
from types import coroutine
from typing import Any, Literal, TypeVar

import anyio
from anyio.to_thread import run_sync

from toolcell.core import (
    ErrorInfo,
    FlowError,
    InvalidInputError,
    NodeFailedError,
    ToolcellError,
)

from ..graph.nodes import Node
from ..graph.signature import NodeInputs
from ..stores.records import Output, QuestionRecord, Redo, TaskRecord, TaskSpec
from ..values.context import NodeContext
from ..values.events import Interrupted, TaskEnded, TaskStarted
from ..values.interrupt import InterruptException, Question, current
from ..values.json_values import digest
from .calls import Calls
from .components import RunComponents
from .journal import TaskJournal
from .operations import TaskOperations
from .outputs import Returned, read_output
from .questions import Questions
from .thread import ThreadView

T = TypeVar("T")


@coroutine
def in_own_context(work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Run a coroutine in a copy of the context: what it sets is gone with it.

    A task would do the same on either event loop, for ten times the price.
    """
    run = copy_context().run
    step: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        try:
            waits_for = run(step, value)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        try:
            value = yield waits_for
            step = work.send
        except BaseException as error:  # noqa: BLE001
            value, step = error, work.throw


_log = logging.getLogger("toolcell.flow")


class TaskRun:
    """One task of the step that runs: its node, called until it ends or asks.

    A task is resumed by running its node again from the beginning. Operations that its
    journal holds return what they returned before, so calls are not made twice, and
    only what the node does besides is repeated. It ends in one of three ways: the node
    returned, it failed and may not be tried again, or it asks and its questions are
    stored. Asking is an exception in the node (`InterruptException`); a node that
    catches it asks all the same.

    Args:
        parts: The parts that the tasks of the thread share.
        spec: The node to run, and its arguments.
        journal: The recorded operations of the task.
        view: The thread at the start of the step.
        alone: True if it is the step's only task: its output then goes into the
            checkpoint, and needs no record.
    """

    def __init__(
        self,
        parts: RunComponents,
        spec: TaskSpec,
        journal: TaskJournal,
        view: ThreadView,
        *,
        alone: bool,
    ) -> None:
        self.spec = spec
        self.journal = journal
        self.returned: Returned | None = None
        """The output, once the node has returned in this process."""

        self.error: FlowError | InvalidInputError | None = None
        """The error of the last attempt, if it failed in this process."""

        self._parts = parts
        self._node: Node = parts.flow.graph.nodes[spec.node]
        self._view = view
        self._state = view.state
        self._step = view.checkpoint.step + 1
        self._began = view.checkpoint.at
        self._alone = alone
        self._milliseconds: float | None = None
        self._end: TaskRecord | None = None
        self._own_task: int | None = None
        self._questions: Questions | None = None
        self._operations: TaskOperations | None = None
        self._failed_before = False
        self._sends = 0

    @property
    def is_over(self) -> bool:
        """True if the node has returned, in this process or an earlier one."""
        ended = self.journal.ended
        return self.returned is not None or (
            ended is not None and ended.status == "done"
        )

    async def run(self, own_task: int) -> None:
        """Run it until it returns, asks or fails; errors of the node are recorded.

        Args:
            own_task: The id of the caller's task, in which an async node runs.
        """
        self._own_task = own_task if self._node.is_async else None
        limiter = self._parts.limiter
        try:
            # Without a turn of the event loop, which the store takes anyway.
            limiter.acquire_on_behalf_of_nowait(self)
        except anyio.WouldBlock:
            await limiter.acquire_on_behalf_of(self)
        try:
            await self._limited_tries()
        finally:
            limiter.release_on_behalf_of(self)

    async def _limited_tries(self) -> None:
        limiter = self._parts.node_limiters.get(self.spec.node)
        if limiter is None:
            await self._tries()
        else:
            async with limiter:
                await self._tries()

    async def _tries(self) -> None:
        started = time.perf_counter()
        ended = self.journal.ended
        self._failed_before = ended is not None and ended.status == "failed"
        if ended is not None and self._failed_before:
            again = ended.error is None or ended.error.kind != "flow.replay"
            await self._forget_failures(again)
        attempt = 0
        while True:
            attempt += 1
            self.error = None
            if self._parts.tell is not None:
                begun = TaskStarted(self.journal.task_id, self.spec.node, attempt)
                await self._parts.announce(begun)
            failure = await self._attempt(attempt)
            if self._is_asking:
                return await self._write_questions()
            if failure is None:
                break
            self.error = self._storable_error(failure)
            if not self._again(failure, attempt):
                break
            await self._forget_failures(True)
            retry = self._node.retry
            if retry is not None:
                await anyio.sleep(retry.pause(attempt))
        self._milliseconds = (time.perf_counter() - started) * 1000
        await self._write_end()

    @property
    def _is_asking(self) -> bool:
        """True if the last attempt waits for answers."""
        return self._questions is not None and bool(self._questions.asked)

    async def _announce_end(self, status: Literal["done", "asking", "failed"]) -> None:
        error = None if self.error is None else ErrorInfo.of(self.error)
        ended = TaskEnded(self.journal.task_id, self.spec.node, status, error)
        await self._parts.announce(ended)

    async def _attempt(self, attempt: int) -> BaseException | None:
        """Run the node once; return what it raised, if it did not ask."""
        try:
            output = await self._called(attempt)
            flow = self._parts.flow
            self.returned = read_output(
                output, flow.graph, self.spec, flow.limits, flow.outer
            )
        except InterruptException:
            return None
        except Exception as error:  # noqa: BLE001
            return error
        except BaseExceptionGroup as group:
            _, rest = group.split(InterruptException)
            if rest is not None and not isinstance(rest, Exception):
                raise
            return rest
        if self._is_asking:
            # The node caught the exception of its question.
            self.returned = None
        return None

    async def _called(self, attempt: int) -> Any:
        node = self._node
        self._questions = self._operations = None
        self._sends = 0
        takes = node.signature
        inputs = NodeInputs(
            state=self._state.view() if takes.takes_state else None,
            context=self._context(attempt) if takes.takes_context else None,
            send=self.spec.send,
            results=self.spec.results,
        )
        positional, named = takes.bind(inputs)
        function = partial(node.function, *positional, **named)
        if node.timeout is None:
            return await in_own_context(self._in_node(function))
        with anyio.fail_after(node.timeout):
            return await in_own_context(self._in_node(function))

    def _context(self, attempt: int) -> NodeContext:
        parts = self._parts
        return NodeContext(
            thread_id=parts.lease.thread_id,
            graph=parts.flow.graph.name,
            node=self._node.name,
            step=self._step,
            task_id=self.journal.task_id,
            attempt=attempt,
            agent_id=parts.agent,
            started_at=self._began,
            seed=self._seed,
            operations=self._begin_operations(),
        )

    def _begin_operations(self) -> TaskOperations:
        """Return the operations of the attempt, which most nodes have none of."""
        if self._operations is None or self._questions is None:
            self._questions = Questions(self._parts, self.journal, self._node.name)
            self._calls.questions = self._questions
            self._operations = TaskOperations(
                self._parts, self.journal, self._questions, self._calls, self._own_task
            )
        return self._operations

    @cached_property
    def _calls(self) -> Calls:
        return Calls(self._parts, self.journal, self._node.name)

    async def _in_node(self, function: Callable[[], Any]) -> Any:
        current.set(self)
        if self._node.is_async:
            return await function()
        return await run_sync(function, abandon_on_cancel=True)

    def ask(self, question: Question) -> Any:
        """Return the answer to a question of the node, or raise to pause."""
        op = self._begin_operations().place(question.key)
        assert self._questions is not None
        return self._questions.ask(op, question)

    @cached_property
    def _seed(self) -> str:
        return digest([self._parts.lease.thread_id, self.journal.task_id])

    def send_id(self) -> str:
        """Return an id for a Send that is the same in every run of the task."""
        self._sends += 1
        return digest([self._seed, self._sends])

    def _again(self, failure: BaseException, attempt: int) -> bool:
        retry = self._node.retry
        if retry is None or attempt >= retry.max_attempts:
            return False
        if isinstance(failure, ToolcellError):
            return failure.retryable
        return True

    async def _forget_failures(self, wanted: bool) -> None:
        """Remove the failures that ended an attempt, so that they are tried again."""
        ops = self.journal.failures_at_end() if wanted else []
        if ops or self.journal.ended is not None:
            redo = Redo(task=self.journal.task_id, ops=ops)
            await self._parts.write(self.journal, redo)

    async def _write_questions(self) -> None:
        records = self._new_questions()
        if records:
            await self._parts.write(self.journal, *records)
        for record in records:
            await self._parts.announce(Interrupted(record.interrupt))
        if self._parts.tell is not None:
            await self._announce_end("asking")

    def _new_questions(self) -> list[QuestionRecord]:
        """Return the questions of the attempt that are not stored yet."""
        questions, task = self._questions, self.journal.task_id
        if questions is None:
            # Those of an inner graph are written by its own tasks.
            return []
        known = {
            question.interrupt.interrupt_id for question in self.journal.asked.values()
        }
        return [
            QuestionRecord(
                task=task,
                op=questions.places[question.interrupt_id],
                interrupt=question,
            )
            for question in questions.asked
            if question.interrupt_id not in known
        ]

    async def _write_end(self) -> None:
        if self.error is not None:
            assert self.end is not None
            await self._parts.write(self.journal, self.end)
        elif not self._alone:
            self._write_later()
        if self._parts.tell is not None:
            await self._announce_end("done" if self.error is None else "failed")

    def _write_later(self) -> None:
        # Nobody waits: if it is lost, the node runs again over its journal.
        assert self.end is not None
        self._parts.writer.write_later(self.journal, self.end)

    @property
    def end(self) -> TaskRecord | None:
        """The record of its end; None: it has not ended."""
        if self._end is None and self._milliseconds is not None:
            self._end = self._new_end(self._milliseconds)
        return self._end or self.journal.ended

    def _new_end(self, took: float) -> TaskRecord:
        task = self.journal.task_id
        if self.error is not None:
            info = ErrorInfo.of(self.error)
            return TaskRecord(task=task, status="failed", error=info, ms=took)
        return TaskRecord(task=task, status="done", output=self.record, ms=took)

    def keep_end(self) -> None:
        """Have its end written, if that was left to a commit."""
        if self._alone and self.journal.ended is None:
            if self._milliseconds is not None:
                self._write_later()

    @property
    def output(self) -> Output:
        """The output of a task that is over; its update may be in `returned`."""
        return self.record if self.returned is None else self.returned.output

    @property
    def record(self) -> Output:
        """The output of a task that is over, as it is stored."""
        if self.returned is not None:
            return self.returned.record
        ended = self.journal.ended
        assert ended is not None
        return ended.output or Output()

    def _storable_error(self, failure: BaseException) -> FlowError | InvalidInputError:
        """Return a failure as an error whose text may be stored."""
        leaves = list(_leaves(failure))
        if len(leaves) == 1 and isinstance(leaves[0], FlowError | InvalidInputError):
            return leaves[0]
        first = leaves[0]
        where = f"node {self.spec.node!r} of thread {self._parts.lease.thread_id!r}"
        _log.error("%s failed", where, exc_info=first)
        error = NodeFailedError(
            f"{where} failed with {type(first).__name__}",
            hint="the log of toolcell.flow says why; resume the thread to try again",
            details={
                "thread": self._parts.lease.thread_id,
                "step": self._step,
                "task": self.journal.task_id,
                "node": self.spec.node,
                "exception": type(first).__name__,
            },
        )
        error.__cause__ = first
        return error


def _leaves(error: BaseException) -> Sequence[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
