"""Questions of threads among the requests that people answer, in any process."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pydantic import JsonValue

from toolcell.core import AuditError, InvalidInputError, StoreUnavailableError, ToolCall
from toolcell.guard import ActionGuard, CallFacts
from toolcell.guard.spi import ApprovalOutcome

from ..stores.reading import read_answer
from ..stores.records import AnswerRecord
from ..values.interrupt import InterruptValue
from .answers import answered, checked, denied
from .components import FlowComponents
from .thread import ThreadView
from .thread_requests import QUESTION_TOOL, end_questions

_log = logging.getLogger("toolcell.flow")
_HOW = "approvals"


class ThreadQuestions:
    """The open questions of one thread, as requests for approval.

    A question of an agent's thread becomes a request of that agent. Approving it
    answers true, or with the argument `answer` that the approver gave. Where the
    executor has no guard with approvals, or the thread no agent, nothing is put there.

    Args:
        flow: The parts of the flow.
        view: The thread.
    """

    def __init__(self, flow: FlowComponents, view: ThreadView) -> None:
        self._flow = flow
        self._view = view
        guard = None if flow.executor is None else flow.executor.guard
        self._guard: ActionGuard | None = guard

    @property
    def is_open(self) -> bool:
        """True if questions of this thread become requests."""
        reachable = self._flow.approvals is not None
        return reachable and self._view.head.agent is not None

    async def put(self, questions: Sequence[InterruptValue]) -> None:
        """Put questions there; one that is there already stays as it is."""
        if self._guard is None or self._guard.approvals is None:
            return
        try:
            for question in questions:
                if question.kind != "approval":
                    await self._guard.approvals.put(*self._request(question))
        except (AuditError, StoreUnavailableError) as error:
            # They are put there when somebody looks at the thread again.
            _log.warning("a question is not among the approvals: %s", error)

    async def take_answers(self) -> None:
        """Use up the answers that were given there, and store them.

        A crash in between leaves a question that is asked anew.

        Raises:
            StoreUnavailableError: A store does not answer.
            AuditError: The use of an answer cannot be recorded.
        """
        if self._guard is None or self._guard.approvals is None:
            return
        for question in self._view.open_questions():
            if question.request_id is not None:
                await self._take_approval(question, question.request_id)
            else:
                await self._take(question)

    async def end_answered(self) -> None:
        """End the requests of questions that were answered elsewhere."""
        answers = self._view.answers.values()
        elsewhere = {each.id for each in answers if each.how != _HOW}
        await end_questions(self._flow.approvals, elsewhere)

    async def _take(self, question: InterruptValue) -> None:
        assert self._guard is not None and self._guard.approvals is not None
        outcome = await self._guard.approvals.put(*self._request(question))
        if outcome.status == "unanswered":
            return
        if outcome.approved and not await self._guard.use_approval(outcome):
            _log.warning("an answer of %r does not count", outcome.approver)
            return
        answer = self._answer(question, outcome)
        if answer is not None:
            await self._store(answer)

    async def _take_approval(self, question: InterruptValue, request: str) -> None:
        """Let the call of a node be made again; the guard finds the answer itself."""
        assert self._guard is not None and self._guard.approvals is not None
        try:
            outcome = await self._guard.approvals.answered(request)
        except InvalidInputError:
            # It ended so long ago that it was forgotten: the call asks anew.
            value, by = "forgotten", ""
        else:
            if outcome is None:
                return
            value, by = outcome.status, outcome.approver or ""
        now = self._flow.clock()
        await self._store(answered(question, value, by=by, how=_HOW, at=now))

    def _answer(
        self, question: InterruptValue, outcome: ApprovalOutcome
    ) -> AnswerRecord | None:
        """Return the answer; None: it does not fit, and has to be given anew."""
        by, now, how = outcome.approver or "", self._flow.clock(), _HOW
        if not outcome.approved:
            reason = outcome.reason
            return denied(question, "denied", by=by, how=how, at=now, reason=reason)
        value: JsonValue = True
        if outcome.edited:
            value = outcome.call.arguments.get("answer")
        elif question.kind == "doubt":
            value = {"outcome": "again"}
        try:
            value = checked(question, value)
        except InvalidInputError as error:
            _log.warning("an answer of %r does not count: %s", by, error)
            return None
        return answered(question, value, by=by, how=how, at=now)

    async def _store(self, answer: AnswerRecord) -> None:
        """Store an answer, or take the one that another process stored before."""
        store, thread = self._flow.checkpointer, self._view.head.thread_id
        at = self._view.head.checkpoint
        if await store.put_once(thread, answer.id, answer.to_bytes(), at=at):
            self._view.answers[answer.id] = answer
            return
        stored = await store.read(thread)
        for other in map(read_answer, stored.answers if stored else ()):
            self._view.answers.setdefault(other.id, other)

    def _request(self, question: InterruptValue) -> tuple[ToolCall, CallFacts]:
        head, graph = self._view.head, self._flow.graph
        arguments: dict[str, JsonValue] = {
            "question": question.payload,
            "node": question.node_id,
            "thread": question.thread_id,
            "interrupt_id": question.interrupt_id,
        }
        if question.answer_schema is not None:
            arguments["answer_schema"] = question.answer_schema
        call = ToolCall(
            id=question.interrupt_id,
            name=QUESTION_TOOL,
            arguments=arguments,
            agent_id=head.agent,
        )
        facts = CallFacts(
            run_id=f"{head.thread_id}:{self._view.checkpoint.turn}",
            version=graph.version,
            definition_hash=self._flow.shape,
        )
        return call, facts
