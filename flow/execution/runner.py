"""One thread, from its claim to its pause or its end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal

import anyio

from toolcell.core import (
    ErrorInfo,
    FlowError,
    FlowLimitError,
    InvalidInputError,
    NodeFailedError,
    ToolcellError,
)

from ..state.state import State, Update
from ..stores.records import (
    Answered,
    Batch,
    Checkpoint,
    GivenAnswer,
    Output,
    TaskSpec,
    read_answer,
)
from ..values.interrupt import InterruptValue
from ..values.send import SendResult
from ..values.send_results import is_enough
from .answers import answered, checked, store_answer
from .outputs import update_of
from .parts import RunParts
from .task import TaskRun
from .thread import ThreadView
from .ways import Plan, next_tasks

_log = logging.getLogger("toolcell.flow")
_LEAST_WHOLE_BYTES = 4_096
_MOST_PATCHES = 256

Outcome = Literal["done", "interrupted", "failed"]


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
    """

    def __init__(self, parts: RunParts, view: ThreadView) -> None:
        self._parts = parts
        self.view = view
        self.error: ToolcellError | None = None
        """The error that made the thread fail, else None."""

        self._tries_failed = view.head.status == "failed"

    async def run(self) -> Outcome:
        """Run steps until the thread pauses, fails or ends, and store its status.

        Raises:
            InvalidInputError: A question was answered before the handler answered it.
            LeaseLostError: Another owner took the thread.
            StoreUnavailableError: The store does not answer.
        """
        steps = 0
        while self.view.checkpoint.next:
            limit = self._parts.flow.limits.max_steps
            if steps == limit:
                return await self._fail(_reached("max_steps", limit, "steps"))
            steps += 1
            outcome = await self._step()
            if outcome is not None:
                return outcome
        return "done"

    async def _step(self) -> Outcome | None:
        """Run one step; None: it was committed."""
        tasks = self._tasks()
        while True:
            await self._run_tasks([each for each in tasks if self._may_run(each)])
            self._tries_failed = False
            if not self.view.open_questions():
                break
            if not await self._ask_handler():
                return await self._pause()
        failed = [each for each in tasks if self._has_failed(each)]
        if failed:
            return await self._fail(failed[0].error or _failed_before(failed[0]))
        try:
            await self._commit(tasks)
        except (FlowError, InvalidInputError) as error:
            records = [each.record() for each in tasks]
            await self._parts.append([each for each in records if each is not None])
            return await self._fail(error)
        return None

    def _tasks(self) -> list[TaskRun]:
        view = self.view
        specs = view.checkpoint.next
        return [
            TaskRun(
                self._parts,
                spec,
                view.journal(task_id),
                view.state,
                step=view.checkpoint.step + 1,
                began=view.checkpoint.at,
                alone=len(specs) == 1,
            )
            for task_id, spec in zip(view.task_ids(), specs, strict=True)
        ]

    def _may_run(self, task: TaskRun) -> bool:
        if task.is_over or task.journal.open:
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
        try:
            async with anyio.create_task_group() as group:
                self._parts.group = group
                for task in tasks:
                    group.start_soon(task.run)
        except BaseExceptionGroup as error:
            # Nodes do not raise here: these are errors of the store or the lease.
            found = _first(error)
            if found is None:
                raise
            raise found from error

    async def _ask_handler(self) -> bool:
        """Ask the handler about open questions; return whether it answered one."""
        handler = self._parts.flow.handler
        if handler is None:
            return False
        answers: list[Answered] = []

        async def ask(question: InterruptValue) -> None:
            try:
                with anyio.fail_after(self._parts.flow.handler_seconds):
                    if await handler.can_handle(question):
                        value = checked(question, await handler.handle(question))
                        answers.append(
                            answered(
                                question,
                                value,
                                by=handler.name,
                                how=handler.name,
                                at=self._parts.flow.clock(),
                            )
                        )
            except Exception:  # noqa: BLE001
                _log.exception("the handler failed on %s", question.interrupt_id)

        async with anyio.create_task_group() as group:
            for question in self.view.open_questions():
                group.start_soon(ask, question)
        checkpointer, thread = self._parts.flow.checkpointer, self._parts.lease[0]
        for answer in answers:
            try:
                await store_answer(checkpointer, thread, answer)
                self.view.answers[answer.id] = answer
            except InvalidInputError:
                await self._take_answers_of_others()
        return bool(answers)

    async def _take_answers_of_others(self) -> None:
        """Take answers that came from elsewhere while the handler was at work."""
        stored = await self._parts.flow.checkpointer.read(self._parts.lease[0])
        for answer in map(read_answer, stored.answers if stored else ()):
            self.view.answers.setdefault(answer.id, answer)

    async def _pause(self) -> Outcome:
        await self._set_status("interrupted", None)
        return "interrupted"

    async def _fail(self, error: ToolcellError) -> Outcome:
        self.error = error
        await self._set_status("failed", ErrorInfo.of(error))
        return "failed"

    async def _set_status(
        self, status: Literal["interrupted", "failed"], error: ErrorInfo | None
    ) -> None:
        head = self.view.head.model_copy(
            update={
                "status": status,
                "error": error,
                "updated": self._parts.flow.clock(),
            }
        )
        await self._parts.append([], head)
        self.view.head = head

    async def _commit(self, tasks: Sequence[TaskRun]) -> None:
        """Merge the outputs of the tasks, and store the next step.

        Raises:
            FlowError: It cannot be merged; nothing was written.
        """
        view, flow = self.view, self._parts.flow
        collected = self._collected(tasks)
        done = [(task.spec, _output(task)) for task in tasks]
        state = view.state.merged(self._updates(tasks))
        plan = next_tasks(
            flow.graph, done, view.checkpoint.joins, collected, state.view
        )
        if state.size > flow.limits.state_bytes:
            raise _reached("state_bytes", flow.limits.state_bytes, "bytes of state")
        if len(plan.tasks) > flow.limits.max_tasks:
            raise _reached("max_tasks", flow.limits.max_tasks, "tasks in one step")
        await self.commit(state, plan, self._given_answers())

    async def commit(
        self, state: State, plan: Plan, answers: Sequence[GivenAnswer] = ()
    ) -> None:
        """Store a checkpoint, then make it the current one of the view."""
        view, flow = self.view, self._parts.flow
        patch = view.state.changes(state)
        whole = self._is_whole(sum(map(len, patch.values())))
        number = view.checkpoint.step + 1
        checkpoint = Checkpoint(
            id=str(number),
            step=number,
            at=flow.clock(),
            turn=view.checkpoint.turn,
            of=None if whole else view.checkpoint.id,
            next=plan.tasks,
            joins=plan.joins,
            batches=plan.batches,
            answers=list(answers),
        )
        text = checkpoint.with_fields(state.texts() if whole else patch)
        head = view.head.model_copy(
            update={
                "status": "running" if plan.tasks else "done",
                "checkpoint": checkpoint.id,
                "version": flow.graph.version,
                "shape": flow.shape,
                "error": None,
                "updated": checkpoint.at,
            }
        )
        await flow.checkpointer.commit(self._parts.lease, text, head, whole=whole)
        view.head, view.checkpoint, view.state = head, checkpoint, state
        view.journals, view.answers = {}, {}
        view.patches = 0 if whole else view.patches + 1
        view.patch_bytes = 0 if whole else view.patch_bytes + len(text)
        view.whole_bytes = len(text) if whole else view.whole_bytes

    def _is_whole(self, more: int) -> bool:
        """Return whether the patches have as many bytes as the state they change."""
        view = self.view
        if view.whole_bytes == 0 or view.patches >= _MOST_PATCHES:
            return True
        weight = max(view.whole_bytes, _LEAST_WHOLE_BYTES)
        return view.patch_bytes + more >= weight

    def _updates(self, tasks: Sequence[TaskRun]) -> list[Update]:
        """Return the updates of answers, then those of tasks, in their order."""
        schema = self._parts.flow.graph.schema
        updates = []
        for task in tasks:
            for asked in task.journal.asked.values():
                answer = self.view.answers.get(asked.interrupt.interrupt_id)
                if answer is not None and answer.update:
                    pieces = schema.encode_update(answer.update, "resume")
                    updates.append(Update(answer.id, "resume", pieces))
        for task in tasks:
            known = task.returned
            pieces = update_of(_output(task)) if known is None else known.update
            updates.append(Update(task.journal.task_id, task.spec.node, pieces))
        return updates

    def _collected(
        self, tasks: Sequence[TaskRun]
    ) -> dict[int, tuple[str, list[SendResult]]]:
        """Return the results of each batch of the step. Raises NodeFailedError."""
        collected: dict[int, tuple[str, list[SendResult]]] = {
            number: (batch.aggregator, [])
            for number, batch in enumerate(self.view.checkpoint.batches)
        }
        for task in tasks:
            if task.spec.batch is not None:
                collected[task.spec.batch][1].append(_send_result(task))
        for number, batch in enumerate(self.view.checkpoint.batches):
            _check_enough(batch, collected[number][1])
        return collected

    def _given_answers(self) -> list[GivenAnswer]:
        asked = {
            each.interrupt.interrupt_id: each.interrupt.node_id or ""
            for journal in self.view.journals.values()
            for each in journal.asked.values()
        }
        return [
            GivenAnswer(id=each.id, node=asked[each.id], by=each.by, how=each.how)
            for each in self.view.answers.values()
            if each.id in asked
        ]


def _output(task: TaskRun) -> Output:
    return task.output if task.is_over else Output()


def _send_result(task: TaskRun) -> SendResult:
    send, ended = task.spec.send, task.journal.ended
    assert send is not None
    error = None if ended is None or task.is_over else ended.error
    return SendResult(
        send_id=send.send_id,
        node=task.spec.node,
        success=task.is_over,
        result=_output(task).result,
        error=None if error is None else error.message,
        error_kind=None if error is None else error.kind,
        duration_ms=None if ended is None else ended.ms,
    )


def _check_enough(batch: Batch, results: Sequence[SendResult]) -> None:
    succeeded = sum(each.success for each in results)
    if not is_enough(succeeded, len(results), batch.min_success):
        raise NodeFailedError(
            f"{succeeded} of {len(results)} workers succeeded,"
            f" {batch.min_success} have to",
            hint="resume the thread to see their errors, or fork it",
            details={"node": batch.aggregator, "succeeded": succeeded},
        )


def _failed_before(task: TaskRun) -> NodeFailedError:
    return NodeFailedError(
        f"node {task.spec.node!r} has not ended",
        hint="resume the thread to try again",
        details={"task": task.journal.task_id, "node": task.spec.node},
    )


def _reached(limit: str, value: int, what: str) -> FlowLimitError:
    return FlowLimitError(
        f"the thread has more than {value} {what}",
        hint=f"resume it with a higher {limit}",
        details={"limit": limit, "value": value},
    )


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
