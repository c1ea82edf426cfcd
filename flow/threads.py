"""Threads of one graph, looked at and answered without running them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from toolcell.core import CheckpointNotFoundError
from toolcell.guard import Approvals

from .control.caller_input import check_answerer, find_question
from .execution.answers import answered, checked, denied, store_answer
from .execution.history import (
    CheckpointInfo,
    ThreadInfo,
    checkpoint_info,
    thread_info,
)
from .execution.thread import ThreadView, view_of
from .execution.thread_requests import end_questions
from .graph.graph import Graph
from .stores.checkpointer import Checkpointer
from .stores.records import AnswerRecord, ThreadHead, ThreadStatus
from .values.interrupt import InterruptState

S = TypeVar("S", bound=BaseModel)


class Threads(Generic[S]):
    """Reads threads and answers their questions; neither needs their lease.

    Args:
        graph: The graph of the threads.
        store: The store that holds them.
        approvals: Those that their questions are among; None: there are none.
        clock: Returns the time with its zone.
    """

    def __init__(
        self,
        graph: Graph[S],
        store: Checkpointer,
        approvals: Approvals | None,
        clock: Callable[[], datetime],
    ) -> None:
        self._graph = graph
        self._store = store
        self._approvals = approvals
        self._clock = clock

    @property
    def graph(self) -> Graph[S]:
        """The graph of the threads."""
        return self._graph

    async def state(self, thread_id: str, checkpoint_id: str | None = None) -> S:
        """Return the state as of a checkpoint, by default the latest.

        Args:
            thread_id: The id of the thread.
            checkpoint_id: The id of one of its checkpoints; None: the latest.

        Raises:
            CheckpointNotFoundError: There is no such thread or checkpoint.
            CheckpointSerializationError: The stored thread cannot be read.
            StoreUnavailableError: The store does not answer.
        """
        view = await self._view(thread_id, checkpoint_id)
        state: S = view.state.view()
        return state

    async def graph_of(self, thread_id: str) -> str | None:
        """Return the name of the graph of a thread in the store; None: no such thread.

        Raises:
            CheckpointSerializationError: The stored thread cannot be read.
            StoreUnavailableError: The store does not answer.
        """
        stored = await self._store.read(thread_id)
        return None if stored is None else stored.head.graph

    async def interrupts(self, thread_id: str) -> list[InterruptState]:
        """Return the open questions. Raises as `state`."""
        return list((await self._view(thread_id)).interrupt_states())

    async def history(
        self, thread_id: str, limit: int = 10, *, before: str | None = None
    ) -> list[CheckpointInfo]:
        """Return the checkpoints of a thread, newest first.

        Args:
            thread_id: The id of the thread; an unknown one has none.
            limit: The largest number of them; when it is reached, ask again with
                `before`.
            before: The id that all returned checkpoints are older than; None: any.

        Raises:
            CheckpointSerializationError: The stored thread cannot be read.
            StoreUnavailableError: The store does not answer.
        """
        texts = await self._store.checkpoints(thread_id, limit, before)
        return [checkpoint_info(text) for text in texts]

    async def threads(
        self,
        *,
        status: ThreadStatus | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> list[ThreadInfo]:
        """Return the threads of this graph, the last changed first.

        Args:
            status: The status of the threads; None: any.
            limit: The largest number of them; when it is reached, ask again with
                `before`.
            before: The id of a thread that changed after all returned ones; None: any.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        return [thread_info(head) for head in await self._heads(status, limit, before)]

    async def _heads(
        self, status: Any, limit: int, before: str | None = None
    ) -> list[ThreadHead]:
        return await self._store.heads(
            graph=self._graph.name, status=status, limit=limit, before=before
        )

    async def answer(
        self, thread_id: str, interrupt_id: str, value: Any, *, by: str
    ) -> None:
        """Give an answer from any process, without running anything.

        The first answer to a question counts.

        Args:
            thread_id: The id of the thread.
            interrupt_id: The id of one of its open questions.
            value: A JSON value that fits the question's `answer_schema`.
            by: The name of whoever answers, for the history.

        Raises:
            CheckpointNotFoundError: There is no such thread.
            InvalidInputError: The question is not open, the answer does not fit, or
                `by` is the agent of the thread.
            StoreUnavailableError: The store does not answer.
        """
        view = await self._view(thread_id)
        question = find_question(view, interrupt_id)
        check_answerer(view, by)
        answer = checked(question, value)
        now = self._clock()
        record = answered(question, answer, by=by, how="answer", at=now)
        await self._give(view, record)

    async def deny(
        self, thread_id: str, interrupt_id: str, *, by: str, reason: str = ""
    ) -> None:
        """Refuse to answer: `interrupt` raises InterruptDeniedError when it goes on.

        Args:
            thread_id: The id of the thread.
            interrupt_id: The id of one of its open questions.
            by: The name of whoever refuses, for the history.
            reason: For the node, and the history.

        Raises:
            CheckpointNotFoundError: There is no such thread.
            InvalidInputError: The question is not open.
            StoreUnavailableError: The store does not answer.
        """
        view = await self._view(thread_id)
        question = find_question(view, interrupt_id)
        check_answerer(view, by)
        now = self._clock()
        record = denied(question, "denied", by=by, how="deny", at=now, reason=reason)
        await self._give(view, record)

    async def _give(self, view: ThreadView, record: AnswerRecord) -> None:
        thread, at = view.head.thread_id, view.head.checkpoint
        await store_answer(self._store, thread, record, at=at)
        await end_questions(self._approvals, [record.id])

    async def _view(
        self, thread_id: str, checkpoint_id: str | None = None
    ) -> ThreadView:
        stored = await self._store.read(thread_id, checkpoint_id)
        if stored is None:
            raise CheckpointNotFoundError(
                "there is no such thread",
                hint="look at its id; flow.threads() lists them",
                details={"thread": thread_id},
            )
        return view_of(stored, self._graph)
