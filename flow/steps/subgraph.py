"""A graph in a graph: its steps are records in the journal of its node's task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio

from toolcell.core import (
    FlowConflictError,
    FlowLimitError,
    InvalidInputError,
    ToolcellError,
)

from ..execution.components import RunComponents
from ..execution.journal import TaskJournal
from ..execution.next_step import first_tasks
from ..execution.outputs import Returned, read_output, update_of
from ..execution.task import TaskRun
from ..execution.thread import ThreadView, state_of
from ..graph.nodes import Child
from ..graph.signature import NodeInputs
from ..state.state import State
from ..stores.reading import read_checkpoint
from ..stores.records import Checkpoint, ChildStep, Output
from .merging import output_of
from .runner import Outcome, Runner


class ChildRunner(Runner):
    """Runs the steps of an inner graph, and asks nothing: the outermost runner does.

    Args:
        parts: The parts of the inner graph.
        view: The inner graph as a thread; its journals and answers are the outer one's.
        journal: The journal of the outer task, which gets the steps.
        tries_failed: True: tasks that failed before run again, too.
    """

    def __init__(
        self,
        parts: RunComponents,
        view: ThreadView,
        journal: TaskJournal,
        *,
        tries_failed: bool,
    ) -> None:
        super().__init__(parts, view, tries_failed=tries_failed)
        self._journal = journal
        self.left: Output | None = None
        """The output of a Command that leads to an enclosing graph."""

    async def _wait_for_calls(self) -> None:
        """Leave it to the outermost step, which outlives a timeout of this one."""

    async def _get_answers(self) -> bool:
        return False

    async def _pause(self) -> Outcome:
        return "interrupted"

    async def _fail(self, error: ToolcellError) -> Outcome:
        self.error = error
        return "failed"

    async def _commit(self, tasks: Sequence[TaskRun]) -> None:
        leaving = [task for task in tasks if output_of(task).graph is not None]
        if len(leaving) > 1:
            raise FlowConflictError(
                "two tasks of one step lead to an enclosing graph",
                hint="let one of them return the Command",
                details={"tasks": [task.journal.task_id for task in leaving]},
            )
        if not leaving:
            return await super()._commit(tasks)
        self.left = leaving[0].record
        ended = self.view.checkpoint.model_copy(update={"next": []})
        self.view.checkpoint = ended

    async def _store(self, checkpoint: Checkpoint, text: bytes, *, whole: bool) -> None:
        await write_step(self._parts, self._journal, text)


async def write_step(parts: RunComponents, journal: TaskJournal, text: bytes) -> None:
    """Store a checkpoint of an inner graph in the journal of its task."""
    made = ChildStep(task=journal.task_id, checkpoint=read_checkpoint(text))
    await parts.write(journal, made)


class GraphTask(TaskRun):
    """A task whose node is a graph. It takes none of the thread's `max_concurrency`."""

    async def run(self, own_task: int) -> None:
        await self._limited_tries()

    @property
    def _is_asking(self) -> bool:
        return self._paused

    _paused = False

    async def _attempt(self, attempt: int) -> BaseException | None:
        self._paused = False
        try:
            with anyio.fail_after(self._node.timeout):
                return await self._run_child(self._failed_before or attempt > 1)
        except Exception as error:  # noqa: BLE001
            return error

    async def _run_child(self, tries_failed: bool) -> ToolcellError | None:
        assert self._node.child is not None
        parts = self._inner_parts(self._node.child)
        view = await self._inner_view(parts)
        runner = ChildRunner(parts, view, self.journal, tries_failed=tries_failed)
        outcome = await runner.run_steps()
        if outcome == "interrupted":
            self._paused = True
        elif outcome == "done":
            self.returned = self._output(runner.left, view.state, self._node.child)
        return runner.error

    def _inner_parts(self, child: Child) -> RunComponents:
        flow = self._parts.flow
        outer = (*flow.outer, flow.graph)
        if len(outer) > flow.limits.depth:
            raise FlowLimitError(
                f"a graph is inside of more than {flow.limits.depth} others",
                hint="make it flatter, or raise depth",
                details={"limit": "depth", "value": flow.limits.depth},
            )
        inner = replace(flow, graph=child.graph, shape="", outer=outer)
        return replace(
            self._parts, flow=inner, node_limiters=child.graph.node_limiters()
        )

    async def _inner_view(self, parts: RunComponents) -> ThreadView:
        """Return the inner graph where it had come to; a new one begins."""
        if not self.journal.steps:
            await write_step(parts, self.journal, self._first_step(parts))
        steps, graph = self.journal.steps, parts.flow.graph
        return ThreadView(
            head=self._view.head,
            checkpoint=steps[-1],
            state=state_of(graph, self._view.head, steps),
            journals=self._view.journals,
            answers=self._view.answers,
            prefix=f"{self.journal.task_id}/",
        )

    def _first_step(self, parts: RunComponents) -> bytes:
        graph = parts.flow.graph
        inputs = NodeInputs(
            state=self._state.view(),
            context=None,
            send=self.spec.send,
            results=self.spec.results,
        )
        positional, named = self._node.signature.bind(inputs)
        value = self._node.function(*positional, **named)
        state = State(graph.schema, graph.schema.start(value))
        plan = first_tasks(graph, state.view)
        first = Checkpoint(
            id="0",
            step=0,
            at=parts.flow.clock(),
            next=plan.tasks,
            joins=plan.joins,
            batches=plan.batches,
        )
        return first.with_fields(state.texts())

    def _output(self, left: Output | None, state: State, child: Child) -> Returned:
        if left is not None:
            return self._as_own(left)
        if child.leave is not None:
            output: Any = child.leave(state.view())
        elif self.spec.batch is not None:
            output = state.to_json()
        else:
            changed = {
                name: pieces
                for name, pieces in state.pieces.items()
                if pieces != self._state.pieces[name]
            }
            return Returned(output=Output(replaces=True), update=changed)
        flow = self._parts.flow
        return read_output(output, flow.graph, self.spec, flow.limits, flow.outer)

    def _as_own(self, left: Output) -> Returned:
        """Return a Command of an inner node as the output of this one, or go on out."""
        if self.spec.batch is not None:
            raise InvalidInputError(
                f"the worker {self.spec.node!r} of a batch returned a command",
                hint="a worker returns its result; the aggregator says where to go",
            )
        if left.graph != self._parts.flow.graph.name:
            return Returned(output=left, update=update_of(left))
        own = left.model_copy(update={"graph": None})
        return Returned(output=own, update=update_of(own))
