"""Answers to the open questions of a step while its process waits."""

from __future__ import annotations

import logging

import anyio

from toolcell.core import InvalidInputError, StoreUnavailableError

from ..execution.answers import CANCEL, answered, checked, store_answer
from ..execution.components import RunComponents
from ..execution.thread import ThreadView
from ..execution.thread_questions import ThreadQuestions
from ..stores.reading import read_answer
from ..stores.records import AnswerRecord
from ..values import events
from ..values.interrupt import InterruptValue

_log = logging.getLogger("toolcell.flow")
_BETWEEN_LOOKS = 0.2
_BETWEEN_WISHES = 0.5


class Answering:
    """Gets answers from the handler and from other processes.

    Args:
        parts: The parts that the tasks of the thread share.
        view: The thread; answers are added to it.
    """

    def __init__(self, parts: RunComponents, view: ThreadView) -> None:
        self._parts = parts
        self._view = view
        self._questions = ThreadQuestions(parts.flow, view)
        self._handed_over: set[str] = set()

    async def get(self) -> bool:
        """Return whether an open question was answered: False if no one can."""
        is_answered = await self._ask_handler() or await self._wait()
        if is_answered:
            await self._questions.end_answered()
        return is_answered

    async def _ask_handler(self) -> bool:
        """Ask the handler about each open question, once."""
        handler = self._parts.flow.handler
        new = [
            question
            for question in self._view.open_questions()
            if question.kind != "approval"
            and question.interrupt_id not in self._handed_over
        ]
        if handler is None or not new:
            return False
        self._handed_over.update(question.interrupt_id for question in new)
        answers: list[AnswerRecord] = []
        async with anyio.create_task_group() as group:
            for question in new:
                group.start_soon(self._hand_over, question, answers)
        checkpointer, thread = self._parts.flow.checkpointer, self._parts.lease[0]
        at = self._view.head.checkpoint
        for answer in answers:
            try:
                await store_answer(checkpointer, thread, answer, at=at)
                await self._add(answer)
            except InvalidInputError:
                await self._take_stored()
        return bool(answers)

    async def _hand_over(
        self, question: InterruptValue, answers: list[AnswerRecord]
    ) -> None:
        flow = self._parts.flow
        handler = flow.handler
        assert handler is not None
        try:
            with anyio.fail_after(flow.handler_seconds):
                if await handler.can_handle(question):
                    value = checked(question, await handler.handle(question))
                    name = handler.name
                    answers.append(
                        answered(question, value, by=name, how=name, at=flow.clock())
                    )
        except Exception:  # noqa: BLE001
            _log.exception("the handler failed on %s", question.interrupt_id)

    async def _wait(self) -> bool:
        """Wait for answers that others give, as long as the caller wants to."""
        if self._parts.wait_until <= 0:
            return False
        while True:
            left = self._parts.wait_until - anyio.current_time()
            # Before the approvals: a question that was answered is not put there anew.
            if await self._take_stored():
                return True
            open_ids = {
                question.interrupt_id for question in self._view.open_questions()
            }
            await self._questions.take_answers()
            stored = [a for a in self._view.answers.values() if a.id in open_ids]
            for answer in stored:
                await self._add(answer)
            if stored:
                return True
            if left <= 0:
                return False
            await anyio.sleep(min(left, _BETWEEN_LOOKS))

    async def _take_stored(self) -> bool:
        """Take answers of others; return whether one is to an open question."""
        known = {question.interrupt_id for question in self._view.open_questions()}
        texts = await self._parts.flow.checkpointer.answers(self._parts.lease[0])
        new = [answer for answer in map(read_answer, texts) if answer.id in known]
        for answer in new:
            await self._add(answer)
        return bool(new)

    async def _add(self, answer: AnswerRecord) -> None:
        self._view.answers[answer.id] = answer
        await self._parts.announce(events.Answered(answer.id, answer.by))

    async def cancel_request(self) -> str:
        """Return the name of who wants the thread to end, once somebody does."""
        while True:
            await anyio.sleep(_BETWEEN_WISHES)
            try:
                texts = await self._parts.flow.checkpointer.answers(
                    self._parts.lease[0]
                )
            except StoreUnavailableError:
                # The next write of the thread raises.
                continue
            for answer in map(read_answer, texts):
                if answer.id == CANCEL:
                    return answer.by
