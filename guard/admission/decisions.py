"""Decisions made of rulings and of answers of the store."""

from __future__ import annotations

import logging
import traceback
from typing import NamedTuple

from toolcell.core import GuardDeniedError, StoreUnavailableError

from ..approvals.types import ApprovalOutcome
from ..stores.base import ReservationOutcome
from ..values.amounts import MICROSECONDS, show_amount
from ..values.calls import Decision, Degraded, Reason, Ruling
from ..values.limit_state import LimitState
from .quotas import Limit, Lines, MissingFacts

_HOLD_PAUSE = MICROSECONDS
"""The time after which to try again while only calls that run hold the room."""

_log = logging.getLogger("toolcell.guard")
_LOOP_DETAILS: dict[Reason, str] = {
    "consecutive": "this tool was called too often in a row; do something else first",
    "repeated": "this call gave the same result before; asking again will not help",
}


class CallDenied(Exception):
    """Ends the admission of a call that is refused."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.detail)
        self.decision = decision


class ApprovalTaken(Exception):
    """An equal call has used the approval: this one needs its own approval."""


def deny(reason: Reason, detail: str, version: str) -> Decision:
    """Return a refusal that comes from neither a rule nor a counter."""
    return Decision(
        verdict="deny", reason=reason, detail=detail, policy_version=version
    )


def not_approved(answer: ApprovalOutcome, version: str, *, park: bool) -> Decision:
    """Return the refusal of a call that no person approved."""
    if answer.status == "rejected":
        return deny("approval_denied", answer.reason, version)
    is_parked = park and answer.approval_id is not None
    reason: Reason = "approval_required" if is_parked else "approval_unavailable"
    return deny(reason, answer.reason, version)._replace(
        approval_id=answer.approval_id, expires_at=answer.expires_at
    )


def check_approvers(answer: ApprovalOutcome, ruling: Ruling, version: str) -> None:
    """Check that as many people approved as the rules of now ask for.

    Raises:
        CallDenied: They are too few: the policy, or an approver, has changed the call's
            terms meanwhile.
    """
    if ruling.verdict == "ask" and len(answer.approved_by) < ruling.approvers:
        detail = f"{ruling.approvers} people have to approve this call"
        raise CallDenied(deny("approval_denied", detail, version))


def refusal_for(error: Exception, version: str) -> Decision:
    """Return the refusal for an error; an unexpected one is our fault."""
    if isinstance(error, CallDenied):
        return error.decision
    if isinstance(error, MissingFacts):
        return deny("facts_missing", str(error), version)
    if isinstance(error, GuardDeniedError):
        # Of the caller, who could not complete the call.
        reason = error.details.get("reason", "bad_call")
        found = deny(reason, error.message, version)
        return found._replace(retry_after=error.details.get("retry_after"))
    if isinstance(error, StoreUnavailableError):
        return deny("store_unavailable", error.message, version)
    # The error's text is left out: it may hold arguments of the call.
    at = traceback.extract_tb(error.__traceback__)[-1]
    kind = type(error).__name__
    _log.error("the guard failed: %s at %s:%s", kind, at.filename, at.lineno)
    return deny("guard_fault", "the guard itself failed", version)


def from_rules(ruling: Ruling, version: str, degraded: Degraded = "") -> Decision:
    """Return the decision that a ruling makes where no limit counts."""
    return Decision(
        verdict=ruling.verdict,
        reason=ruling.reason,
        detail=ruling.detail,
        rule=ruling.rule,
        policy_version=version,
        would_deny=ruling.would_deny,
        tried=ruling.tried,
        degraded=degraded,
        approvers=ruling.approvers,
    )


def loop_detected(ruling: Ruling, reason: Reason, version: str) -> Decision:
    """Return the refusal of a call that continues a loop."""
    return Decision(
        verdict="deny",
        reason=reason,
        detail=_LOOP_DETAILS[reason],
        policy_version=version,
        would_deny=ruling.would_deny,
        tried=ruling.tried,
    )


def from_limits(
    ruling: Ruling,
    lines: Lines,
    outcome: ReservationOutcome,
    now: int,
    version: str,
    *,
    took: bool,
    degraded: Degraded = "",
) -> Decision:
    """Return the decision that a ruling and the store's answer make.

    Args:
        ruling: The ruling of the policies: allow or ask.
        lines: The limits that count, as the store was asked.
        outcome: The answer of the store.
        now: The time of the answer, in microseconds.
        version: The version of the policies.
        took: True if the amounts were reserved, and so are not in `remaining`.
        degraded: The way in which the call was admitted while the store was away.
    """
    remaining = remaining_by_limit(lines, outcome, taken=took and outcome.admitted)
    would_deny = ruling.would_deny
    full: _Full | None = None
    longest_wait: int | None = 0
    if lines.on_trial or not outcome.admitted:
        for reached in _full_limits(lines, outcome, now):
            wait = reached.wait
            if not reached.enforced:
                would_deny = (*would_deny, reached.limit.label)
                continue
            full = full or reached
            if longest_wait is None or wait is None:
                longest_wait = None
            elif wait > longest_wait:
                longest_wait = wait
    if full is not None:
        return Decision(
            verdict="deny",
            reason=full.limit.reason,
            detail=full.sentence,
            rule=full.limit.label,
            retry_after=None if longest_wait is None else longest_wait / MICROSECONDS,
            decided_at=now / MICROSECONDS,
            remaining=remaining,
            policy_version=version,
            would_deny=would_deny,
            tried=ruling.tried,
            degraded=degraded,
        )
    return Decision(
        verdict=ruling.verdict,
        reason=ruling.reason,
        detail=ruling.detail,
        rule=ruling.rule,
        remaining=remaining,
        policy_version=version,
        would_deny=would_deny,
        tried=ruling.tried,
        degraded=degraded,
        approvers=ruling.approvers,
    )


class _Full(NamedTuple):
    """A limit that has no room for a call."""

    limit: Limit
    enforced: bool
    wait: int | None
    """Microseconds until there may be room; None if time alone does not help."""

    sentence: str


def _full_limits(lines: Lines, outcome: ReservationOutcome, now: int) -> list[_Full]:
    """Return each full limit."""
    reached: list[_Full] = []
    demand, limits = lines.demand, iter(lines.limits)
    # `limits` stands last, so that this does not take one too many.
    for hit, wait, limit in zip(demand.hits, outcome.waits, limits, strict=False):
        if wait > 0:
            fits = hit.calls <= hit.limit
            sentence = _rate_sentence(limit)
            reached.append(_Full(limit, hit.enforced, wait if fits else None, sentence))
    for charge, level, limit in zip(
        demand.charges, outcome.levels, limits, strict=True
    ):
        if sum(level) > charge.limit:
            used, _, asked = level
            only_holds = used + asked <= charge.limit
            if only_holds and limit.reason == "budget_exceeded":
                wait_for_room: int | None = _HOLD_PAUSE
            else:
                end = limit.ends(now) if asked <= charge.limit else None
                wait_for_room = None if end is None else end - now
            sentence = _budget_sentence(limit, level)
            reached.append(_Full(limit, charge.enforced, wait_for_room, sentence))
    return reached


def _rate_sentence(limit: Limit) -> str:
    if limit.reason == "store_unavailable":
        return "the guard's store is not available, and its stand-in is used up"
    amount = show_amount(limit.unit, limit.amount)
    return f"the limit {limit.label!r} of {amount} is reached"


def _budget_sentence(limit: Limit, level: tuple[int, int, int]) -> str:
    """Return the sentence on a limit of amounts, of which one is used, held, asked."""
    if limit.reason != "budget_exceeded":
        return _rate_sentence(limit)
    used, held, asked = (show_amount(limit.unit, each) for each in level)
    whole = show_amount(limit.unit, limit.amount)
    sentence = (
        f"the limit {limit.label!r} of {whole} has no room: {used} used, {held} held "
        f"by calls that run, and this call may use up to {asked}"
    )
    if level[2] > limit.amount:
        sentence = f"{sentence}, more than it ever has"
    room = max(limit.amount - level[0] - level[1], 0)
    return f"{sentence}; up to {show_amount(limit.unit, room)} fits now"


def limit_states(
    lines: Lines, outcome: ReservationOutcome, now: int
) -> list[LimitState]:
    """Return the state of each limit of a call that nothing was reserved for.

    Args:
        lines: The limits, as the store was asked.
        outcome: The answer of the store.
        now: The time of the answer, in microseconds.
    """
    demand, limits = lines.demand, iter(lines.limits)
    states = []
    for hit, wait, room in zip(demand.hits, outcome.waits, outcome.room, strict=True):
        limit, left = next(limits), max(room, 0)
        states.append(
            LimitState(
                label=limit.label,
                unit="calls",
                window="rate",
                maximum=limit.amount,
                used=max(limit.amount - left, 0),
                held=0,
                left=left,
                resets_at=(now + wait) / MICROSECONDS if wait else None,
                enforced=hit.enforced,
            )
        )
    for charge, level in zip(demand.charges, outcome.levels, strict=True):
        limit, (used, held, _) = next(limits), level
        end = limit.ends(now)
        states.append(
            LimitState(
                label=limit.label,
                unit=limit.unit,
                window=limit.window,
                maximum=show_amount(limit.unit, limit.amount),
                used=show_amount(limit.unit, used),
                held=show_amount(limit.unit, held),
                left=show_amount(limit.unit, max(limit.amount - used - held, 0)),
                resets_at=None if end is None else end / MICROSECONDS,
                enforced=charge.enforced,
            )
        )
    return states


def remaining_by_limit(
    lines: Lines, outcome: ReservationOutcome, *, taken: bool
) -> dict[str, int | str]:
    """Return what each limit leaves, by label; with `taken` after this call."""
    remaining: dict[str, int | str] = {}
    limits = iter(lines.limits)
    for hit, room in zip(lines.demand.hits, outcome.room, strict=True):
        rest = room - hit.calls if taken else room
        remaining[next(limits).label] = rest if rest > 0 else 0
    for limit, (used, held, amount) in zip(limits, outcome.levels, strict=True):
        rest = limit.amount - used - held - (amount if taken else 0)
        remaining[limit.label] = show_amount(limit.unit, rest if rest > 0 else 0)
    return remaining
