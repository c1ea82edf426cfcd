"""The outputs of a step's tasks, brought together for its commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolcell.core import NodeFailedError

from ..execution.outputs import update_of
from ..execution.task import TaskRun
from ..execution.thread import ThreadView
from ..state.fields import Schema
from ..state.state import Update
from ..stores.records import Batch, GivenAnswer, Output
from ..values.send import SendResult
from ..values.send_results import is_enough

Collected = dict[int, tuple[str, list[SendResult]]]
"""The aggregator and the results of each batch of a step."""


def output_of(task: TaskRun) -> Output:
    """Return the output of a task; an empty one of a failure that is collected."""
    return task.output if task.is_over else Output()


def updates_of(
    tasks: Sequence[TaskRun], view: ThreadView, schema: Schema
) -> list[Update]:
    """Return the updates of answers, then those of tasks, in their order."""
    updates = []
    for answer in view.answers.values():
        if answer.update and view.prefix == "":
            pieces = schema.encode_update(answer.update, "resume")
            updates.append(Update(answer.id, "resume", pieces))
    for task in tasks:
        known, output = task.returned, output_of(task)
        pieces = update_of(output) if known is None else known.update
        updates.append(
            Update(task.journal.task_id, task.spec.node, pieces, output.replaces)
        )
    return updates


def collected_of(tasks: Sequence[TaskRun], view: ThreadView) -> Collected:
    """Return the results of each batch of the step.

    Raises:
        NodeFailedError: Too few workers of a batch succeeded.
    """
    batches = view.checkpoint.batches
    collected: Collected = {
        number: (batch.aggregator, []) for number, batch in enumerate(batches)
    }
    for task in tasks:
        if task.spec.batch is not None:
            collected[task.spec.batch][1].append(_send_result(task))
    for number, batch in enumerate(batches):
        _check_enough(batch, collected[number][1])
    return collected


def given_answers(view: ThreadView) -> list[GivenAnswer]:
    """Return who answered which questions of the step, without the answers."""
    if not view.answers:
        return []
    asked = {
        question.interrupt.interrupt_id: question.interrupt.node_id or ""
        for journal in view.journals.values()
        for question in journal.asked.values()
    }
    return [
        GivenAnswer(id=answer.id, node=asked[answer.id], by=answer.by, how=answer.how)
        for answer in view.answers.values()
        if answer.id in asked
    ]


def _send_result(task: TaskRun) -> SendResult:
    send, ended = task.spec.send, task.end
    assert send is not None
    error = None if ended is None or task.is_over else ended.error
    result: Any = output_of(task).result
    return SendResult(
        send_id=send.send_id,
        node=task.spec.node,
        success=task.is_over,
        result=result,
        error=None if error is None else error.message,
        error_kind=None if error is None else error.kind,
        duration_ms=None if ended is None else ended.ms,
    )


def _check_enough(batch: Batch, results: Sequence[SendResult]) -> None:
    succeeded = sum(result.success for result in results)
    if not is_enough(succeeded, len(results), batch.min_success):
        raise NodeFailedError(
            f"{succeeded} of {len(results)} workers succeeded,"
            f" {batch.min_success} have to",
            hint="resume the thread to see their errors, or fork it",
            details={"node": batch.aggregator, "succeeded": succeeded},
        )
