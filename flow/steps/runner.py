"""One thread, from its claim to its pause or its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import anyio

from toolcell.core import (
    ErrorInfo,
    FlowConflictError,
    FlowError,
    FlowLimitError,
    InvalidInputError,
    NodeFailedError,
    ToolcellError,
)

from ..execution.components import RunComponents
from ..execution.next_step import Plan, next_tasks
from ..execution.task import TaskRun
from ..execution.thread import ThreadView
from ..execution.thread_questions import ThreadQuestions
from ..state.state import State
from ..stores.records import Checkpoint, GivenAnswer, Redo, TaskSpec
from ..values.events import StepCommitted, StepStarted
from .answering import Answering
from .merging import collected_of, given_answers, output_of, updates_of

_LEAST_WHOLE_BYTES = 4_096
_MOST_PATCHES = 256

Outcome = Literal["done", "interrupted", "failed", "cancelled"]


class Runner:
    """Runs the steps of a thread whose lease the caller holds.

    A step runs its tasks in parallel on the same state, merges their updates in the
    order of the tasks, and stores the new state, the next tasks and the head in one
    write. If the process dies before that write, the next owner runs the tasks that
    have not ended; their journals prevent recorded operations from being done twice.
    A node that fails ends the run with the outcome `failed`; it raises nothing.

    Args:
        parts: The parts that the tasks of the thread share.
        view: The thread as it was read; it is updated after each write.
        tries_failed: True: tasks that failed before run again, too.
    """

    def __init__(
        self, parts: RunComponents, view: ThreadView, *, tries_failed: bool
    ) -> None:
        self._parts = parts
        self.view = view
        self.error: ToolcellError | None = None
        """The error that made the thread fail, else None."""

        self.cancelled_by: str | None = None
        """The name of who wanted the thread to end while it ran, else None."""

        self._tries_failed = tries_failed
        self._answering = Answering(parts, view)
        self._own_task = 0

    async def run(self) -> Outcome:
        """Run steps until the thread pauses, fails or ends, and store its status.

        Raises:
            InvalidInputError: A question was answered before the handler answered it.
            LeaseLostError: Another owner took the thread.
            StoreUnavailableError: The store does not answer.
        """
        outcome: Outcome = "cancelled"

        async def cancel(scope: anyio.CancelScope) -> None:
            self.cancelled_by = await self._answering.cancel_request()
            scope.cancel()

        try:
            async with anyio.create_task_group() as group:
                self._parts.group = self._parts.writer.group = group
                group.start_soon(cancel, group.cancel_scope)
                outcome = await self.run_steps()
                self.cancelled_by = None
                group.cancel_scope.cancel()
        except BaseExceptionGroup as error:
            raise_first(error)
        return outcome

    async def run_steps(self) -> Outcome:
        """Run steps until the thread pauses, fails or ends. Raises as `run`."""
        steps = 0
        self._own_task = anyio.get_current_task().id
        while self.view.checkpoint.next:
            limit = self._parts.flow.limits.max_steps
            if steps == limit:
                return await self._fail(_limit_error("max_steps", limit, "steps"))
            steps += 1
            outcome = await self._step()
            if outcome is not None:
                return outcome
        return "done"

    async def _step(self) -> Outcome | None:
        """Run one step; None: it was committed."""
        tasks = self._tasks()
        if self._parts.tell is not None:
            ids = tuple(task.journal.task_id for task in tasks)
            await self._parts.announce(StepStarted(self.view.checkpoint.step + 1, ids))
        while True:
            waiting = self.view.waiting_tasks()
            await self._run_tasks([t for t in tasks if self._may_run(t, waiting)])
            if self._parts.calls_in_flight:
                await self._wait_for_calls()
            self._tries_failed = False
            if not self.view.open_questions():
                break
            if not await self._get_answers():
                return await self._pause()
        failed = [task for task in tasks if self._has_failed(task)]
        if failed:
            return await self._fail(failed[0].error or _failed_before(failed[0]))
        try:
            await self._commit(tasks)
        except FlowConflictError as error:
            # Their nodes have to return something else, so their outputs do not stay.
            await self._keep(tasks, but=error.details["tasks"])
            return await self._fail(error)
        except (FlowError, InvalidInputError) as error:
            await self._keep(tasks)
            return await self._fail(error)
        return None

    async def _keep(self, tasks: Sequence[TaskRun], but: Sequence[str] = ()) -> None:
        """Store the outputs of a step that was not committed, except of some tasks."""
        for task in tasks:
            if task.journal.task_id not in but:
                task.keep_end()
        for task_id in but:
            redo = Redo(task=task_id, ops=[])
            self._parts.writer.write_later(self.view.journal(task_id), redo)

    def _tasks(self) -> list[TaskRun]:
        view = self.view
        specs = view.checkpoint.next
        return [
            self._task(spec)(
                self._parts,
                spec,
                view.journal(task_id),
                view,
                alone=len(specs) == 1,
            )
            for task_id, spec in zip(view.task_ids(), specs, strict=True)
        ]

    def _task(self, spec: TaskSpec) -> type[TaskRun]:
        graph = self._parts.flow.graph
        is_graph = graph.nodes[spec.node].child is not None
        return self._parts.graph_task if is_graph else TaskRun

    def _may_run(self, task: TaskRun, waiting: set[str]) -> bool:
        if task.is_over or task.journal.task_id in waiting:
            return False
        ended = task.journal.ended
        is_failure = ended is not None and ended.status == "failed"
        collected = is_failure and self._collects(task.spec)
        return self._tries_failed or not collected

    def _collects(self, spec: TaskSpec) -> bool:
        """Return whether a failure of a task is a result for an aggregator."""
        if spec.batch is None:
            return False
        return self.view.checkpoint.batches[spec.batch].on_failure == "collect"

    def _has_failed(self, task: TaskRun) -> bool:
        return not task.is_over and not self._collects(task.spec)

    async def _run_tasks(self, tasks: Sequence[TaskRun]) -> None:
        """Run tasks, as many at once as may."""
        if len(tasks) == 1:
            return await tasks[0].run(self._own_task)
        graphs = [task for task in tasks if isinstance(task, self._parts.graph_task)]
        others = iter([task for task in tasks if task not in graphs])

        async def work() -> None:
            own_task = anyio.get_current_task().id
            for task in others:
                await task.run(own_task)

        try:
            async with anyio.create_task_group() as group:
                for task in graphs:
                    group.start_soon(task.run, self._own_task)
                most = self._parts.flow.limits.max_concurrency
                for _ in range(min(len(tasks) - len(graphs), most)):
                    group.start_soon(work)
        except BaseExceptionGroup as error:
            # Nodes do not raise here: these are errors of the store or the lease.
            raise_first(error)

    async def _wait_for_calls(self) -> None:
        """Wait for calls that have outlived their nodes."""
        while self._parts.calls_in_flight:
            await next(iter(self._parts.calls_in_flight)).wait()

    async def _get_answers(self) -> bool:
        return await self._answering.get()

    async def _pause(self) -> Outcome:
        asked = ThreadQuestions(self._parts.flow, self.view)
        questions = self.view.open_questions()
        own = [question for question in questions if question.request_id is None]
        expiries = [
            question.expires_at for question in own if question.expires_at is not None
        ]
        await self._set_status(
            status="interrupted",
            error=None,
            expires=min(expiries, default=None),
            requests=len(questions) if asked.is_open else 0,
        )
        await asked.put(questions)
        return "interrupted"

    async def _fail(self, error: ToolcellError) -> Outcome:
        self.error = error
        await self._set_status(status="failed", error=ErrorInfo.of(error))
        return "failed"

    async def _set_status(self, **fields: Any) -> None:
        now = self._parts.flow.clock()
        head = self.view.head.model_copy(update={**fields, "updated": now})
        await self._parts.writer.flush()
        await self._parts.flow.checkpointer.append(self._parts.lease, [], head)
        self.view.head = head

    async def _commit(self, tasks: Sequence[TaskRun]) -> None:
        """Merge the outputs of the tasks, and store the next step.

        Raises:
            FlowError: It cannot be merged; nothing was written.
        """
        view, flow = self.view, self._parts.flow
        collected = collected_of(tasks, view)
        done = [(task.spec, output_of(task)) for task in tasks]
        state = view.state.merged(updates_of(tasks, view, flow.graph.schema))
        plan = next_tasks(
            flow.graph, done, view.checkpoint.joins, collected, state.view
        )
        if state.size > flow.limits.state_bytes:
            raise _limit_error("state_bytes", flow.limits.state_bytes, "bytes of state")
        if len(plan.tasks) > flow.limits.max_tasks:
            raise _limit_error("max_tasks", flow.limits.max_tasks, "tasks in one step")
        await self.commit(state, plan, given_answers(view))

    async def commit(
        self, state: State, plan: Plan, answers: Sequence[GivenAnswer] = ()
    ) -> None:
        """Store a checkpoint, then make it the current one of the view."""
        view = self.view
        patch = view.state.changes(state)
        whole = self._is_whole(sum(map(len, patch.values())))
        checkpoint = Checkpoint.after(
            view.checkpoint,
            self._parts.flow.clock(),
            whole=whole,
            tasks=plan.tasks,
            joins=plan.joins,
            batches=plan.batches,
            answers=list(answers),
        )
        text = checkpoint.with_fields(state.texts() if whole else patch)
        await self._store(checkpoint, text, whole=whole)
        view.checkpoint, view.state = checkpoint, state
        view.patches = 0 if whole else view.patches + 1
        view.patch_bytes = 0 if whole else view.patch_bytes + len(text)
        view.whole_bytes = len(text) if whole else view.whole_bytes
        if self._parts.tell is not None:
            checkpoint_id = f"{view.prefix}{checkpoint.id}"
            changed = tuple(sorted(patch))
            committed = StepCommitted(checkpoint.step, checkpoint_id, changed)
            await self._parts.announce(committed)

    async def _store(self, checkpoint: Checkpoint, text: bytes, *, whole: bool) -> None:
        flow, view = self._parts.flow, self.view
        head = view.head.at(checkpoint, flow.graph.version, flow.shape)
        # The checkpoint has what they would say.
        await self._parts.writer.drop()
        await flow.checkpointer.commit(self._parts.lease, text, head, whole=whole)
        view.head = head
        view.journals, view.answers = {}, {}

    def _is_whole(self, more: int) -> bool:
        """Return whether the patches have as many bytes as the state they change."""
        view = self.view
        if view.whole_bytes == 0 or view.patches >= _MOST_PATCHES:
            return True
        weight = max(view.whole_bytes, _LEAST_WHOLE_BYTES)
        return view.patch_bytes + more >= weight


def _failed_before(task: TaskRun) -> NodeFailedError:
    return NodeFailedError(
        f"node {task.spec.node!r} has not ended",
        hint="resume the thread to try again",
        details={"task": task.journal.task_id, "node": task.spec.node},
    )


def _limit_error(limit: str, value: int, what: str) -> FlowLimitError:
    return FlowLimitError(
        f"the thread has more than {value} {what}",
        hint=f"resume it with a higher {limit}",
        details={"limit": limit, "value": value},
    )


def raise_first(group: BaseExceptionGroup[Any]) -> None:
    """Raise the first error of toolcell in a group, or all of it if it has others."""
    found = _first(group)
    if found is None:
        raise group
    raise found from group


def _first(error: BaseException) -> Any:
    """Return the first error of toolcell in a group; None if others are in it too."""
    if isinstance(error, ToolcellError):
        return error
    if isinstance(error, BaseExceptionGroup):
        found = [_first(inner) for inner in error.exceptions]
        # A group that holds any other error is raised whole, so that none is lost.
        if all(each is not None for each in found):
            return found[0]
    return None
