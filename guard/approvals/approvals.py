"""Asks people before a call runs, and binds each approval to that very call.

A request is bound to the agent, the run, the tool with its version and definition,
the arguments and a time of expiry. The same call, asked for again in this process or
after a crash in another, finds the same request and its answer. An approval is used
once: by the first call that is about to run with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    nullcontext,
)
from functools import partial
from typing import Literal, TypeVar

from anyio.lowlevel import RunVar

from toolcell.core import ConfigError, ToolCall

from ..audit.log import AuditLog
from ..audit.redaction import Redactor
from ..values.amounts import Clock, steady_time
from ..values.calls import CallFacts, Decision
from .answer_waits import AnswerWaits, ApprovalLookups
from .records import ApprovalRecord, ApprovalState, as_it_stands, no_answer
from .store import ApprovalStore
from .types import (
    ApprovalHandler,
    ApprovalOutcome,
    ApprovalReply,
    ApprovalRequest,
    AutoApprove,
    Preview,
    StandingGrant,
    is_automatic,
)
from .withdrawal import Withdrawn
from .workflow import ApprovalWorkflow

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Approvals:
    """Holds calls until a person has answered, durably.

    An approval counts for one call of one agent in one run, with the same tool,
    version, definition and arguments, and is used once. An agent cannot approve its own
    calls. What the audit log cannot record does not happen. If nobody answers, the call
    is refused.

    Args:
        store: Keeps the requests. Default: in memory, lost with the process.
        handler: Asks a person and returns the reply; None from it leaves the request
            to others. An error that it raises is no approval. A plain function runs in
            one of 40 threads; when all of them ask, further requests wait.
        answered_elsewhere: True if replies may also come by `answer`, here or in
            another process with the same store. Without it and without a handler
            nobody can be reached, and every call is refused at once.
        wait_seconds: Seconds that a call waits; default 300. When it is reached the
            call is refused; the request stays open, and the same call finds a later
            answer.
        expiry_seconds: Seconds in which a request may be answered and its approval
            used; default 3,600. When it is reached the call has to be asked for again.
        max_pending: Most open requests of one agent; default 100. When it is reached
            further calls of the agent are refused without asking.
        profile: `development` permits an `AutoApprove`; default `production`.
        audit: Records requests and answers; a guard fills in its own log.
        redactor: Decides which parts of a request are hidden from approvers until they
            are opened; default `Redactor()`.
        clock: Returns seconds since 1970 (UTC).

    Raises:
        ConfigError: A limit is out of range, or the profile forbids the handler.
    """

    def __init__(
        self,
        store: ApprovalStore | None = None,
        *,
        handler: ApprovalHandler | None = None,
        answered_elsewhere: bool = False,
        wait_seconds: float = 300.0,
        expiry_seconds: float = 3600.0,
        max_pending: int = 100,
        profile: Literal["production", "development"] = "production",
        audit: AuditLog | None = None,
        redactor: Redactor | None = None,
        clock: Clock = steady_time,
    ) -> None:
        if not (wait_seconds >= 0 and 0 < expiry_seconds and max_pending > 0):
            raise ConfigError(
                "a limit of approvals is out of range",
                hint="wait_seconds is 0 or more; expiry_seconds and "
                "max_pending are above 0",
            )
        if isinstance(handler, AutoApprove):
            if profile != "development":
                raise ConfigError(
                    "AutoApprove is refused in the profile 'production'",
                    hint="ask a person, or choose the profile 'development'",
                )
            _log.warning("calls are approved without a person, by %r", handler.by)
        self._workflow = ApprovalWorkflow(
            store or ApprovalStore(),
            audit,
            redactor or Redactor(),
            clock,
            expiry_seconds=expiry_seconds,
            max_pending=max_pending,
        )
        self._waits = AnswerWaits(
            self._workflow, handler, answered_elsewhere=answered_elsewhere
        )
        self._profile = profile
        self._reachable = answered_elsewhere or handler is not None
        self._wait_seconds = wait_seconds
        self._of_loop = RunVar[ApprovalLookups](f"approvals-{id(self)}")

    @property
    def _lookups(self) -> ApprovalLookups:
        try:
            return self._of_loop.get()
        except LookupError:
            looks = ApprovalLookups(self._workflow.ended)
            self._of_loop.set(looks)
            return looks

    @property
    def wait_seconds(self) -> float:
        """Seconds that a call waits for an answer."""
        return self._wait_seconds

    @property
    def audit(self) -> AuditLog | None:
        """The log of requests and answers."""
        return self._workflow.audit

    @audit.setter
    def audit(self, audit: AuditLog | None) -> None:
        self._workflow.audit = audit

    @property
    def redactor(self) -> Redactor:
        """Decides which parts of a request are hidden."""
        return self._workflow.redactor

    async def peek(
        self, call: ToolCall, facts: CallFacts, *, approvers: int = 1
    ) -> ApprovalOutcome:
        """Return the answer that there is about a call; ask no one, use nothing up.

        Args:
            call: The call.
            facts: Further facts of the call, to which the answer is bound too.
            approvers: The people who have to approve it; default 1.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        return await self._lookups.in_thread(
            self._workflow.current_outcome, call, facts, approvers
        )

    async def ask(
        self,
        call: ToolCall,
        facts: CallFacts,
        decision: Decision,
        *,
        wait_seconds: float | None = None,
        preview: Preview | None = None,
    ) -> ApprovalOutcome:
        """Hold a call until it is answered. A refusal is an outcome, not an error.

        Args:
            call: The call, its arguments validated and its agent bound.
            facts: Further facts of the call, to which the answer is bound too.
            decision: The decision to ask.
            wait_seconds: Seconds to wait, instead of this object's. 0: no one is
                asked, unless the call is to be parked, and only an earlier answer or
                a grant counts.
            preview: Returns what the call would do, in the words of its tool.

        Raises:
            AuditError: The request cannot be recorded.
            StoreUnavailableError: The store did not answer.
        """
        if call.agent_id is None:
            return no_answer(call, "a call that names no agent is not asked about")
        standing = await self.peek(call, facts, approvers=decision.approvers)
        if standing.status != "unanswered":
            return standing
        wait = self._wait_seconds if wait_seconds is None else wait_seconds
        if (wait <= 0 and not facts.park) or not self._reachable:
            return no_answer(call, "nobody can be asked for approval")
        opened = await self._lookups.in_thread(
            self._workflow.request,
            call,
            facts,
            decision,
            "" if preview is None else await preview(),
            wait_seconds=None if facts.park else wait,
        )
        if wait <= 0 or opened is None:
            return as_it_stands(call, opened)
        return await self._waits.outcome(
            call, opened.request, wait, self._lookups, parked=facts.park
        )

    async def put(self, call: ToolCall, facts: CallFacts) -> ApprovalOutcome:
        """Put a question to people, or return the answer that it has got.

        Nobody waits here, and no grant answers it. An answer is there until `use`, or
        until its request expires.

        Args:
            call: The question as a call, of the agent that asks.
            facts: Further facts, to which the answer is bound too.

        Raises:
            AuditError: The request cannot be recorded.
            StoreUnavailableError: The store did not answer.
        """
        if call.agent_id is None or not self._reachable:
            return no_answer(call, "nobody can be asked")
        decision = Decision("ask", "approval_required")
        opened = await self._lookups.in_thread(
            self._workflow.request, call, facts, decision
        )
        return as_it_stands(call, opened)

    async def end(self, request_id: str, *, reason: str) -> bool:
        """End a request without an answer, since nobody needs one any more.

        Args:
            request_id: The request.
            reason: The reason, for people and for the record `approval_ended`: 1 to
                2,000 characters.

        Returns:
            True if it was still waiting. What has been answered stays.

        Raises:
            InvalidInputError: There is no such request, or the reason is empty or too
                long.
            AuditError: The end cannot be recorded; the request still waits.
            StoreUnavailableError: The store did not answer.
        """
        return await self._lookups.in_thread(self._workflow.end, request_id, reason)

    async def answered(self, request_id: str) -> ApprovalOutcome | None:
        """Return the answer to a request, used up or not; None: it waits.

        Raises:
            InvalidInputError: There is no such request.
            StoreUnavailableError: The store did not answer.
        """
        return await self._lookups.in_thread(self._workflow.answered, request_id)

    def turn(self, answer: ApprovalOutcome) -> AbstractAsyncContextManager[object]:
        """Wait until no equal call of this event loop is about to use an approval.

        Of all that wait for one approval the first uses it, and the others see that
        (`is_used`) before they take anything else.
        """
        if answer.approval_id is None:
            return nullcontext()
        return self._lookups.turn(answer.approval_id)

    async def is_used(self, answer: ApprovalOutcome) -> bool:
        """Return whether an approval is used up; a grant never is.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        if answer.approval_id is None:
            return False
        found = await self.find(answer.approval_id)
        return found is not None and found.status == "used"

    async def use(self, answer: ApprovalOutcome) -> bool:
        """Use an approval up, right before its call runs.

        Returns:
            True if there was an approval to use. A grant is there until it ends.

        Raises:
            AuditError: The use cannot be recorded; nothing is used up.
            StoreUnavailableError: The store did not answer.
        """
        if self._profile == "production" and any(map(is_automatic, answer.approved_by)):
            return False
        return await self._lookups.in_thread(self._workflow.use, answer)

    async def answer(
        self,
        request_id: str,
        reply: ApprovalReply,
        *,
        within: AbstractContextManager[object] | None = None,
    ) -> None:
        """Answer a request; any process that has the store may.

        An approval by one of several people who have to approve is counted once for
        each; the request waits for the others.

        Args:
            request_id: The request.
            reply: The answer.
            within: Entered right before the answer is stored, and left after it, in a
                worker thread. It is the place to check that the person may answer, and
                to hold what says so: if entering it raises, there is no answer.

        Raises:
            InvalidInputError: No such request waits, the approver may not answer it,
                or the reply cannot be used.
            AuditError: The answer cannot be recorded; it does not count.
            StoreUnavailableError: The store did not answer.
        """
        step = partial(self._workflow.answer, request_id, reply, automatic=False)
        await self._lookups.in_thread(_inside, within, step)

    async def withdraw(
        self,
        name: str,
        *,
        by: str,
        keep_agents: Collection[str] = (),
        within: AbstractContextManager[object] | None = None,
    ) -> Withdrawn:
        """Take back what a person has approved: for one who may not answer any more.

        Requests that the person has approved wait again; of several people, the others
        still count. Grants of the person end. What was used, and what the person has
        rejected, stays. Names are the same if they differ only in case, width or
        punctuation. One record, `approvals_withdrawn`, says what was taken back.

        Args:
            name: The name of the person.
            by: The name of who takes it back.
            keep_agents: Agents for which the approvals and grants stay; default none.
            within: Entered right before it is taken back, and left after it, in a
                worker thread, such as the transaction that removes the person.

        Raises:
            InvalidInputError: The name has neither a letter nor a digit.
            AuditError: It cannot be recorded; nothing is taken back.
            StoreUnavailableError: The store did not answer.
        """
        step = partial(self._workflow.withdraw, name, by, keep_agents)
        return await self._lookups.in_thread(_inside, within, step)

    async def reveal(self, request_id: str, *, by: str) -> ApprovalRequest:
        """Return a request for its hidden parts to be opened; the name is recorded.

        Raises:
            InvalidInputError: No such request waits, or `by` may not answer it.
            AuditError: It cannot be recorded.
            StoreUnavailableError: The store did not answer.
        """
        return await self._lookups.in_thread(self._workflow.reveal, request_id, by)

    async def pending(self) -> list[ApprovalRequest]:
        """Return the requests that wait for an answer, the oldest first."""
        return await self._lookups.in_thread(
            self._workflow.store.pending, self._workflow.clock()
        )

    async def waiting(self, agent_id: str | None = None) -> dict[str, int]:
        """Return which requests wait, without reading what they ask.

        Args:
            agent_id: Only those of this agent; None: all.

        Returns:
            Their ids, the oldest first, each with the number of people of several
            who have approved the request.
        """
        return await self._lookups.in_thread(
            self._workflow.store.waiting, self._workflow.clock(), agent_id
        )

    async def count_waited_for(self) -> int:
        """Return the number of requests whose calls still wait, reading none whole."""
        return await self._lookups.in_thread(
            self._workflow.store.count_waited_for, self._workflow.clock()
        )

    async def find(self, request_id: str) -> ApprovalRecord | None:
        """Return a request and its answer; None: it is unknown, or forgotten."""
        return await self._lookups.in_thread(self._workflow.store.get, request_id)

    async def recent(
        self,
        *,
        state: ApprovalState | None = None,
        agent_id: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[ApprovalRecord]:
        """Return the newest requests with their answers, the newest first.

        They are remembered for 30 days after they have expired.

        Args:
            state: Only those in this state; None: all.
            agent_id: Only those of this agent.
            before: Only those with a lower `number`: the last one of the page before.
            limit: Most requests; default 100.
        """
        look = partial(
            self._workflow.store.recent,
            state=state,
            agent_id=agent_id,
            before=before,
            limit=limit,
        )
        return await self._lookups.in_thread(look, self._workflow.clock())

    async def check(self) -> None:
        """Check that requests and answers can be written.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        await self._lookups.in_thread(self._workflow.store.check)

    async def grants(self) -> list[StandingGrant]:
        """Return the grants that have not ended."""
        return await self._lookups.in_thread(
            self._workflow.store.grants, self._workflow.clock()
        )

    async def revoke(self, grant_id: str, *, by: str) -> bool:
        """End a grant now; return whether there was one."""
        return await self._lookups.in_thread(self._workflow.revoke, grant_id, by)


def _inside(place: AbstractContextManager[object] | None, step: Callable[[], _T]) -> _T:
    with nullcontext() if place is None else place:
        return step()
