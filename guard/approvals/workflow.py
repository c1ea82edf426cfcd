"""The steps of an approval, each one transaction together with its record."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from toolcell.core import InvalidInputError, ToolCall

from ..audit.log import AuditLog
from ..audit.redaction import Redactor
from ..values.amounts import Clock
from ..values.calls import CallFacts, Decision, call_hash
from .records import ApprovalRecord, no_answer, outcome_of, with_arguments
from .shown import ShownRequest, check_seen, hidden_as_json
from .store import ApprovalStore
from .types import (
    PREVIEW_CHARACTERS,
    REASON_CHARACTERS,
    ApprovalOutcome,
    ApprovalReply,
    ApprovalRequest,
    Approve,
    Grant,
    Reject,
    StandingGrant,
    check_name,
    is_automatic,
    is_same_name,
    is_shell_like,
)
from .withdrawal import Withdrawn

_WAITING = "`toolcell approvals list` shows the requests that wait"


class ApprovalWorkflow:
    """The steps from a request for approval to its use.

    Each step changes the store and writes its record in one transaction: a step that
    cannot be recorded does not happen. A request is answered once, and an approval used
    once. Neither the agent that asks nor an automatic approver may answer in a person's
    name; who tries is recorded. An approval that names what was seen counts for that
    alone, and one of a request with hidden parts only if they were opened.

    Args:
        store: Keeps requests, answers and grants.
        audit: Records them; None: nothing is recorded.
        redactor: Decides which parts of a request are hidden.
        clock: Returns seconds since 1970 (UTC).
        expiry_seconds: Seconds in which a request may be answered and used.
        max_pending: Most open requests of one agent.
    """

    def __init__(
        self,
        store: ApprovalStore,
        audit: AuditLog | None,
        redactor: Redactor,
        clock: Clock,
        *,
        expiry_seconds: float,
        max_pending: int,
    ) -> None:
        self.store = store
        self.audit = audit
        self.redactor = redactor
        self.clock = clock
        self._expiry_seconds = expiry_seconds
        self._max_pending = max_pending

    def current_outcome(
        self, call: ToolCall, facts: CallFacts, approvers: int
    ) -> ApprovalOutcome:
        """Return the answer about a call, or the grant that covers it."""
        now = self.clock()
        # One person made a grant, so it covers nothing that several have to approve.
        for grant in self.store.grants(now, call.agent_id) if approvers == 1 else ():
            if grant.covers(call, facts):
                return ApprovalOutcome(
                    status="approved",
                    call=call,
                    approver=grant.approver,
                    approved_by=(grant.approver,),
                    grant_id=grant.id,
                )
        digest = call_hash(call, facts, approvers)
        record = self.store.current_record(digest, now)
        if record is None or record.status == "pending":
            return no_answer(call, "this call waits for approval")
        return outcome_of(call, record)

    def request(
        self,
        call: ToolCall,
        facts: CallFacts,
        decision: Decision,
        preview: str = "",
        *,
        wait_seconds: float | None = None,
    ) -> ApprovalRecord | None:
        """Store a request; return None if the agent has too many.

        Args:
            call: The call.
            facts: Further facts of the call.
            decision: The decision to ask.
            preview: The effect of the call in the words of its tool.
            wait_seconds: Seconds that the call waits. None: until the request expires.
        """
        now = self.clock()
        expires_at = now + self._expiry_seconds
        request = ApprovalRequest(
            id=secrets.token_hex(8),
            call=call,
            run_id=facts.run_id,
            version=facts.version,
            definition_hash=facts.definition_hash,
            tags=facts.tags,
            rule=decision.rule or "",
            asked_at=now,
            expires_at=expires_at,
            calls=facts.calls,
            approvers=decision.approvers,
            preview=_bounded(preview),
            waits_until=expires_at
            if wait_seconds is None
            else min(now + wait_seconds, expires_at),
        )
        record = partial(
            self._record,
            "approval_asked",
            **_named(request),
            run_id=facts.run_id,
            **({} if facts.calls == 1 else {"calls": facts.calls}),
            arguments=call.arguments,
            hidden=hidden_as_json(ShownRequest(request, self.redactor).hidden),
            rule=request.rule,
            **({} if request.approvers == 1 else {"approvers": request.approvers}),
            **({"preview": request.preview} if request.preview else {}),
            expires_at=request.expires_at,
        )
        return self.store.open(request, max_pending=self._max_pending, record=record)

    def leave(self, request: ApprovalRequest) -> None:
        """Note that the call of a request gave up before its time."""
        self.store.leave(request, self.clock())

    def end(self, request_id: str, reason: str) -> bool:
        """End a request without an answer; return whether it was still waiting."""
        if not _checked_reason(reason):
            raise InvalidInputError(
                "a request ends for a reason", hint="say why nobody needs its answer"
            )
        request = self._request_record(request_id).request
        record = partial(
            self._record, "approval_ended", **_named(request), reason=reason
        )
        return self.store.end(request_id, self.clock(), reason, record)

    def ended(self, request_ids: Iterable[str]) -> dict[str, ApprovalRecord | None]:
        """Return the records of requests that no longer wait; None: forgotten."""
        return self.store.ended(request_ids, self.clock())

    def answered(self, request_id: str) -> ApprovalOutcome | None:
        """Return the outcome of a request; None: it waits. Raises InvalidInputError."""
        found = self._request_record(request_id)
        call, ends = found.request.call, found.request.expires_at
        if found.status != "pending":
            return outcome_of(call, found)
        over = ends <= self.clock()
        return no_answer(call, found.why_unanswered) if over else None

    def answer(self, request_id: str, reply: ApprovalReply, *, automatic: bool) -> None:
        """Answer a request, once.

        Raises:
            InvalidInputError: The request does not wait, the approver may not answer
                it, or the reply cannot be used.
        """
        if not isinstance(reply, Approve | Reject):
            raise InvalidInputError(
                f"an answer is no {type(reply).__name__}",
                hint="answer with Approve(approver=...) or Reject(approver=...)",
            )
        request = self._request_record(request_id).request
        self._check_approver(request, reply.approver, automatic=automatic)
        if isinstance(reply, Approve) and request.approvers > 1:
            self._add_vote(request, reply, automatic=automatic)
            return
        edited, grant, reason = None, None, ""
        if isinstance(reply, Approve):
            edited, grant = self._approved(request, reply, automatic=automatic)
        else:
            reason = _checked_reason(reply.reason)
        record = partial(
            self._record,
            "approval_answered",
            **_named(request),
            approved=isinstance(reply, Approve),
            approver=reply.approver,
            automatic=automatic,
            reason=reason,
            arguments=edited,
            opened=self._has_opened(request, reply),
            **_granted(grant),
        )
        if not self.store.answer(
            request_id,
            "approved" if isinstance(reply, Approve) else "rejected",
            now=self.clock(),
            approver=reply.approver,
            reason=reason,
            arguments=edited,
            grant=grant,
            record=record,
        ):
            raise self._no_longer_waits(request_id)

    def _add_vote(
        self, request: ApprovalRequest, reply: Approve, *, automatic: bool
    ) -> None:
        """Count one of the people who have to approve a request."""
        if automatic or reply.arguments is not None or reply.grant is not None:
            raise InvalidInputError(
                f"{request.approvers} people have to approve this call as it is, once",
                hint="approve it without a grant or other arguments, or deny it",
            )
        check_seen(request, reply, self.redactor)

        def record(approved_by: list[str]) -> None:
            last = len(approved_by) >= request.approvers
            self._record(
                "approval_answered" if last else "approval_voted",
                **_named(request),
                approved=True,
                approver=reply.approver,
                automatic=False,
                opened=self._has_opened(request, reply),
                approved_by=approved_by,
                approvers=request.approvers,
            )

        if not self.store.add_vote(request, reply.approver, self.clock(), record):
            found = self._request_record(request.id)
            counted = any(is_same_name(reply.approver, n) for n in found.approved_by)
            if counted and found.state(self.clock()) == "waiting":
                raise InvalidInputError(
                    f"{reply.approver} has approved this call already",
                    hint=f"it takes {request.approvers} people: another one answers",
                )
            raise self._no_longer_waits(request.id)

    def _approved(
        self, request: ApprovalRequest, reply: Approve, *, automatic: bool
    ) -> tuple[dict[str, Any] | None, StandingGrant | None]:
        """Return the edited arguments and the grant of an approval, if it has any."""
        call, edited = request.call, None
        if reply.arguments is not None:
            call = with_arguments(call, reply.arguments)
            edited = call.arguments
        if not automatic:
            check_seen(request, reply, self.redactor)
        if reply.grant is None:
            return edited, None
        return edited, self._grant(request, call, reply.approver, reply.grant)

    def _request_record(self, request_id: str) -> ApprovalRecord:
        found = self.store.get(request_id)
        if found is None:
            raise InvalidInputError(
                f"there is no request {request_id!r}", hint=_WAITING
            )
        return found

    def _no_longer_waits(self, request_id: str) -> InvalidInputError:
        state = self._request_record(request_id).state_in_words(self.clock())
        return InvalidInputError(
            f"the request {request_id!r} no longer waits, its state is {state}",
            hint=_WAITING,
        )

    def reveal(self, request_id: str, by: str) -> ApprovalRequest:
        """Return a request for its hidden parts to be opened; the name is recorded.

        Raises:
            InvalidInputError: The request does not wait, or `by` may not answer it.
        """
        found = self.store.get(request_id)
        if found is None or found.state(self.clock()) != "waiting":
            raise InvalidInputError(f"no request {request_id!r} waits", hint=_WAITING)
        request = found.request
        self._check_approver(request, by, automatic=False)
        hidden = hidden_as_json(ShownRequest(request, self.redactor).hidden)
        self._record("approval_opened", **_named(request), by=by, hidden=hidden)
        return request

    def _has_opened(self, request: ApprovalRequest, reply: ApprovalReply) -> bool:
        opened = ShownRequest(request, self.redactor, opened=True)
        return isinstance(reply, Approve) and reply.seen == opened.digest

    def use(self, answer: ApprovalOutcome) -> bool:
        """Use an approval up; return whether there was one."""
        call, now = answer.call, self.clock()
        record = partial(
            self._record,
            "approval_used",
            approval_id=answer.approval_id,
            grant_id=answer.grant_id,
            agent_id=call.agent_id,
            call_id=call.id,
            tool=call.name,
        )
        if answer.grant_id is not None:
            return self.store.use_grant(answer.grant_id, now, record)
        if answer.approval_id is None or not answer.approved:
            return False
        return self.store.use(answer.approval_id, now, record)

    def revoke(self, grant_id: str, by: str) -> bool:
        """End a grant; return whether there was one."""
        record = partial(self._record, "grant_revoked", grant_id=grant_id, by=by)
        return self.store.revoke(grant_id, record)

    def withdraw(self, name: str, by: str, keep_agents: Collection[str]) -> Withdrawn:
        """Take back what a person has approved. Raises InvalidInputError: no name."""
        check_name(name)

        def record(withdrawn: Withdrawn) -> None:
            self._record(
                "approvals_withdrawn",
                person=name,
                by=by,
                approvals=withdrawn.requests,
                grants=withdrawn.grants,
                **({"kept_agents": [*keep_agents]} if keep_agents else {}),
            )

        return self.store.withdraw(name, self.clock(), keep_agents, record)

    def _check_approver(
        self, request: ApprovalRequest, approver: str, *, automatic: bool
    ) -> None:
        check_name(approver)
        own = is_same_name(approver, request.call.agent_id or "")
        if own or (is_automatic(approver) and not automatic):
            self._record("approval_misused", **_named(request), approver=approver)
            raise InvalidInputError(
                f"{approver!r} may not answer this request",
                hint="a person answers, never the agent that asks",
            )

    def _grant(
        self, request: ApprovalRequest, call: ToolCall, approver: str, grant: Grant
    ) -> StandingGrant:
        names = tuple(call.arguments) if grant.arguments is None else grant.arguments
        if grant.arguments is not None and is_shell_like(call, request.facts):
            raise InvalidInputError(
                f"{call.name!r} runs what its arguments say",
                hint="grant the exact call: leave out `arguments`",
            )
        unknown = sorted(set(names) - call.arguments.keys())
        if unknown:
            raise InvalidInputError(
                f"the call has no argument {', '.join(unknown)}",
                hint="name arguments of the call, as the request shows them",
            )
        return StandingGrant(
            id=secrets.token_hex(8),
            agent_id=call.agent_id or "",
            tool=call.name,
            version=request.version,
            definition_hash=request.definition_hash,
            fixed={name: call.arguments[name] for name in names},
            exact=grant.arguments is None,
            expires_at=self.clock() + grant.seconds,
            approver=approver,
        )

    def _record(self, event: str, **fields: Any) -> None:
        if self.audit is not None:
            self.audit.append(event, **fields)


def _bounded(preview: str) -> str:
    """Return a preview as it is kept: short enough, and in characters of UTF-8."""
    text = preview.encode("utf-8", "replace").decode()
    more = len(text) - PREVIEW_CHARACTERS
    return text if more <= 0 else f"{text[:-more]}\n[cut: {more} more characters]"


def _checked_reason(reason: str) -> str:
    if len(reason) > REASON_CHARACTERS:
        raise InvalidInputError(
            f"a reason has at most {REASON_CHARACTERS} characters",
            hint="shorten it",
        )
    return reason


def _named(request: ApprovalRequest) -> dict[str, Any]:
    return {
        "approval_id": request.id,
        "agent_id": request.call.agent_id,
        "call_id": request.call.id,
        "tool": request.call.name,
    }


def _granted(grant: StandingGrant | None) -> dict[str, Any]:
    if grant is None:
        return {}
    return {
        "grant_id": grant.id,
        "granted": grant.fixed,
        "granted_exact": grant.exact,
        "granted_until": grant.expires_at,
    }
