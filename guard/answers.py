"""Decisions, made from what rules and limits say."""

from __future__ import annotations

from .decision import Decision, Degraded, Reason
from .quotas import Limit, Lines
from .rates import MICROSECONDS
from .rules import Ruling
from .store import Outcome
from .units import show_amount

_CIRCLING: dict[Reason, str] = {
    "consecutive": "this tool was called too often in a row; do something else first",
    "repeated": "this call gave the same result before; asking again will not help",
}


def refused(reason: Reason, detail: str, version: str) -> Decision:
    """Return a refusal that no rule and no counter made."""
    return Decision(
        verdict="deny", reason=reason, detail=detail, policy_version=version
    )


def ruled(ruling: Ruling, version: str, degraded: Degraded = "") -> Decision:
    """Return the decision of rules alone."""
    return Decision(
        verdict=ruling.verdict,
        reason=ruling.reason,
        detail=ruling.detail,
        rule=ruling.rule,
        policy_version=version,
        would_deny=ruling.would_deny,
        tried=ruling.tried,
        degraded=degraded,
    )


def circling(ruling: Ruling, reason: Reason, version: str) -> Decision:
    """Return the refusal of a call that goes round in circles."""
    return Decision(
        verdict="deny",
        reason=reason,
        detail=_CIRCLING[reason],
        policy_version=version,
        would_deny=ruling.would_deny,
        tried=ruling.tried,
    )


def limited(
    ruling: Ruling,
    lines: Lines,
    outcome: Outcome,
    now: int,
    version: str,
    *,
    took: bool,
    degraded: Degraded = "",
) -> Decision:
    """Return the decision of rules and limits.

    Args:
        ruling: What the rules say: allow or ask.
        lines: What was asked of the store.
        outcome: What it answered.
        now: When it was asked, in microseconds.
        version: Of the policies.
        took: Whether what fits was taken, and is not part of what remains.
        degraded: How the store was stood in for.
    """
    remaining = left(lines, outcome, taken=took and outcome.admitted)
    full: list[Limit] = []
    would_deny = ruling.would_deny
    waits: list[int | None] = []
    if lines.on_trial or not outcome.admitted:
        full, on_trial, waits = _full(lines, outcome, now)
        would_deny = (*would_deny, *on_trial)
    if full:
        known = [wait for wait in waits if wait is not None]
        retry = max(known) / MICROSECONDS if len(known) == len(waits) else None
        return Decision(
            verdict="deny",
            reason=full[0].reason,
            detail=_sentence(full[0]),
            rule=full[0].label,
            retry_after=retry,
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
    )


def _sentence(limit: Limit) -> str:
    if limit.reason == "store_unavailable":
        return "the guard's store is not available, and its stand-in is used up"
    most = show_amount(limit.unit, limit.most)
    return f"the limit {limit.label!r} of {most} is reached"


def _full(
    lines: Lines, outcome: Outcome, now: int
) -> tuple[list[Limit], list[str], list[int | None]]:
    """Return the limits that refuse, those that would, and how long each does."""
    full: list[Limit] = []
    on_trial: list[str] = []
    waits: list[int | None] = []
    checks: list[tuple[bool, bool, int | None]] = [
        (wait > 0, hit.enforced, wait)
        for hit, wait in zip(lines.needs.hits, outcome.waits, strict=True)
    ]
    limits = lines.limits[len(lines.needs.hits) :]
    for charge, limit, level in zip(
        lines.needs.charges, limits, outcome.levels, strict=True
    ):
        wait = None
        if level[2] <= charge.limit:
            end = limit.ends(now)
            wait = None if end is None else end - now
        checks.append((sum(level) > charge.limit, charge.enforced, wait))
    for limit, (is_full, enforced, wait) in zip(lines.limits, checks, strict=True):
        if is_full and enforced:
            full.append(limit)
            waits.append(wait)
        elif is_full:
            on_trial.append(limit.label)
    return full, on_trial, waits


def left(lines: Lines, outcome: Outcome, *, taken: bool) -> dict[str, int | str]:
    """Return what each limit leaves, by its label; `taken`: after this call."""
    told: dict[str, int | str] = {}
    limits = iter(lines.limits)
    for room in outcome.room:
        told[next(limits).label] = room - taken if room > taken else 0
    for limit, (used, held, amount) in zip(limits, outcome.levels, strict=True):
        rest = limit.most - used - held - (amount if taken else 0)
        told[limit.label] = show_amount(limit.unit, rest if rest > 0 else 0)
    return told
