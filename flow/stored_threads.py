"""Threads of any graph, read and answered without the code of their graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from pydantic import JsonValue

from toolcell.core import (
    CheckpointNotFoundError,
    CheckpointSerializationError,
    InvalidInputError,
)
from toolcell.guard import Approvals
from toolcell.guard.spi import is_same_name

from .control.cancelling import cancel_thread
from .execution.answers import (
    CANCEL,
    answered,
    answered_before,
    checked,
    denied,
    store_answer,
)
from .execution.history import (
    CheckpointInfo,
    ThreadInfo,
    checkpoint_info,
    thread_info,
)
from .execution.journal import journals
from .execution.thread import folded
from .execution.thread_requests import end_questions
from .state.patch import value_of
from .stores.checkpointer import Checkpointer
from .stores.reading import read_answer, read_checkpoint, read_journal
from .stores.records import AnswerRecord, Checkpoint, JournalRecord, ThreadStatus
from .values.interrupt import InterruptValue

_PAGE = 200


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredThread:
    """One thread as its store has it."""

    info: ThreadInfo
    agent: str | None
    step: int
    """The number of the last step that was committed."""

    state: dict[str, JsonValue]
    """The state after that step."""

    next_nodes: tuple[str, ...]
    """The nodes of the step that runs; empty if the thread is done."""

    questions: tuple[InterruptValue, ...]
    """The questions without an answer."""

    journal: tuple[JournalRecord, ...]
    """The records of the step that runs."""


class StoredThreads:
    """Reads, answers and ends threads of any graph.

    Args:
        store: The store that holds them.
        approvals: Those that their questions are among, from which the questions go
            that are answered here. None, the default: there are none.
        clock: Returns the time with its zone; default: the system's.
    """

    def __init__(
        self,
        store: Checkpointer,
        *,
        approvals: Approvals | None = None,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        self._store = store
        self._approvals = approvals
        self._clock = clock

    async def threads(
        self,
        *,
        graph: str | None = None,
        status: ThreadStatus | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> list[ThreadInfo]:
        """Return threads, the last changed first; see `Checkpointer.heads`."""
        heads = await self._store.heads(
            graph=graph, status=status, limit=limit, before=before
        )
        return [thread_info(head) for head in heads]

    async def read(self, thread_id: str) -> StoredThread:
        """Return one thread.

        Raises:
            CheckpointNotFoundError: There is no such thread.
            CheckpointSerializationError: It cannot be read.
            StoreUnavailableError: The store does not answer.
        """
        stored = await self._store.read(thread_id)
        if stored is None:
            raise CheckpointNotFoundError(
                "there is no such thread",
                hint="look at its id; `toolcell flow list` shows them",
                details={"thread": thread_id},
            )
        checkpoints = [read_checkpoint(text) for text in stored.checkpoints]
        latest, pieces = checkpoints[-1], folded(checkpoints)
        answers = {answer.id: answer for answer in map(read_answer, stored.answers)}
        records = tuple(read_journal(text) for text in stored.journal)
        open_ones = [
            asked.interrupt
            for journal in journals(records, answers).values()
            for asked in journal.open
        ]
        return StoredThread(
            info=thread_info(stored.head),
            agent=stored.head.agent,
            step=latest.step,
            state={name: value_of(piece) for name, piece in pieces.items()},
            next_nodes=tuple(place.node for place in latest.next),
            questions=tuple(open_ones),
            journal=records,
        )

    async def history(
        self, thread_id: str, limit: int = 10, *, before: str | None = None
    ) -> list[CheckpointInfo]:
        """Return the checkpoints of a thread, newest first, as `Flow.history`."""
        texts = await self._store.checkpoints(thread_id, limit, before)
        return [checkpoint_info(text) for text in texts]

    async def verify(self, thread_id: str | None = None) -> dict[str, str]:
        """Read threads with their whole history; return what is wrong, by thread.

        Args:
            thread_id: The id of the thread; None: all of them.

        Raises:
            CheckpointNotFoundError: There is no such thread.
            StoreUnavailableError: The store does not answer.
        """
        if thread_id is not None:
            ids = [thread_id]
        else:
            heads = await self._store.every_head()
            ids = [head.thread_id for head in heads if head.graph]
            ids += await self._store.unreadable()
        wrong = {}
        for one_id in ids:
            try:
                await self._verify(one_id)
            except CheckpointSerializationError as error:
                wrong[one_id] = error.message
            except CheckpointNotFoundError:
                if thread_id is not None:
                    raise
        return wrong

    async def _verify(self, thread_id: str) -> None:
        """Read each chain of patches. Raises CheckpointSerializationError."""
        await self.read(thread_id)
        for newer, older in pairwise(await self._checkpoints(thread_id)):
            if newer.of is None:
                # The newest chain was read above.
                stored = await self._store.read(thread_id, older.id)
                assert stored is not None
                folded([read_checkpoint(text) for text in stored.checkpoints])

    async def _checkpoints(self, thread_id: str) -> list[Checkpoint]:
        """Return all checkpoints without their states, newest first."""
        found: list[Checkpoint] = []
        while True:
            before = found[-1].id if found else None
            texts = await self._store.checkpoints(thread_id, _PAGE, before)
            bare = {"state": None, "patch": None}
            found += [read_checkpoint(t).model_copy(update=bare) for t in texts]
            if len(texts) < _PAGE:
                return found

    async def prune(self, before: datetime) -> list[str]:
        """Delete threads that are done or were cancelled; return their ids.

        A failed one stays, since it can be resumed, and so does one that has an owner.

        Args:
            before: The time, with its zone, since which a deleted thread has not
                changed.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        return await self._store.delete_ended(before, saved_states=False)

    async def answer(
        self, thread_id: str, interrupt_id: str | None, value: Any, *, by: str
    ) -> None:
        """Give an answer, as `Flow.answer`; None: to the one question that is open."""
        question, at = await self._question(thread_id, interrupt_id, by)
        given, now = checked(question, value), self._clock()
        answer = answered(question, given, by=by, how="answer", at=now)
        await self._give(thread_id, answer, at)

    async def deny(
        self, thread_id: str, interrupt_id: str | None, *, by: str, reason: str = ""
    ) -> None:
        """Refuse to answer, as `Flow.deny`; None: the one question that is open."""
        question, at = await self._question(thread_id, interrupt_id, by)
        now = self._clock()
        refusal = denied(question, "denied", by=by, how="deny", at=now, reason=reason)
        await self._give(thread_id, refusal, at)

    async def _give(self, thread_id: str, answer: AnswerRecord, at: str) -> None:
        await store_answer(self._store, thread_id, answer, at=at)
        await end_questions(self._approvals, [answer.id])

    async def cancel(
        self, thread_id: str, *, by: str, wait_seconds: float = 10.0
    ) -> None:
        """End a thread wherever it runs, as `Flow.cancel`."""
        await cancel_thread(
            self._store,
            self._approvals,
            thread_id,
            by=by,
            wait_seconds=wait_seconds,
            clock=self._clock,
        )

    async def _question(
        self, thread_id: str, interrupt_id: str | None, by: str
    ) -> tuple[InterruptValue, str]:
        """Return the question that is meant, and the checkpoint at which it is open."""
        thread = await self.read(thread_id)
        if thread.agent is not None and is_same_name(by, thread.agent):
            raise InvalidInputError(
                f"{by!r} may not answer this question",
                hint="a person answers, never the agent that asks",
            )
        found = [
            question
            for question in thread.questions
            if interrupt_id in (None, question.interrupt_id)
        ]
        if not found:
            await self._check_answered(thread_id, interrupt_id)
        if len(found) != 1:
            raise InvalidInputError(
                f"{len(found)} open questions are meant",
                hint="`toolcell flow show` lists those of the thread by their ids",
                details={"thread": thread_id},
            )
        if found[0].request_id is not None:
            raise InvalidInputError(
                "a call is approved where approvals are, not here",
                hint=f"toolcell approvals approve {found[0].request_id}",
            )
        return found[0], thread.info.checkpoint_id

    async def _check_answered(self, thread_id: str, interrupt_id: str | None) -> None:
        """Raise InvalidInputError if the one question that is meant has an answer."""
        answers = map(read_answer, await self._store.answers(thread_id))
        known = {answer.id: answer for answer in answers if answer.id != CANCEL}
        meant = [*known] if interrupt_id is None else [interrupt_id]
        if len(meant) == 1 and meant[0] in known:
            raise answered_before(meant[0], known)
