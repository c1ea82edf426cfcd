"""Decisions of the guard about calls, and their reasons."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from toolcell.core import GuardDeniedError, GuardError, StoreUnavailableError

GuardVerdict = Literal["allow", "ask", "deny"]
Degraded = Literal["", "local", "open"]
Reason = Literal[
    "allowed",
    "no_agent",
    "no_policy",
    "bad_call",
    "no_tool",
    "credential_misplaced",
    "denied",
    "not_allowed",
    "approval_required",
    "approval_denied",
    "approval_unavailable",
    "facts_missing",
    "rate_limited",
    "concurrency",
    "turn_limit",
    "budget_exceeded",
    "consecutive",
    "repeated",
    "store_unavailable",
    "guard_fault",
]
"""The reason of a decision, as one stable word:

allowed: a rule allows the call. no_agent: the call names no agent. no_policy: the
agent has no policy. bad_call: the tool's name is not one, or the
arguments are no JSON object. no_tool: the agent has no
tool of this name. credential_misplaced: a program's request has the placeholder of a
credential where its value may not go. denied: a rule denies it.
not_allowed: no rule allows it. approval_required: a person must agree.
approval_denied: the person did not. approval_unavailable: nobody answered, or could
be asked.
facts_missing: a limit needs to know the run or the turn. rate_limited, concurrency,
turn_limit, budget_exceeded: a limit is reached. consecutive: too many calls of one
tool in a row. repeated: the same call with the same result too often.
store_unavailable: the store did not answer. guard_fault: the guard itself failed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One rule that was tried, in order."""

    rule: str
    met: bool
    detail: str = ""
    """Each argument that it asks for, `met`, `not met` or `cannot be judged`; or what
    the tool has other than it asks for: `another version`, `another via`, `other tags`.
    """


class Decision(NamedTuple):
    """The guard's answer to one call. Only `allow` lets the call run."""

    verdict: GuardVerdict
    reason: Reason
    detail: str = ""
    """One sentence for people and for the model."""

    rule: str | None = None
    """The rule or limit that decided, such as `agent.allow[0]`, or its own name."""

    retry_after: float | None = None
    """Seconds after which the same call could be admitted, if nobody else calls;
    None where time alone does not help, or it is not known."""

    decided_at: float | None = None
    """The time of a decision by limits, in seconds since 1970 (UTC)."""

    remaining: Mapping[str, int | str] = MappingProxyType({})
    """The amount that each limit leaves, by the label of the limit."""

    policy_version: str = ""
    """The version of the policies that decided."""

    would_deny: tuple[str, ...] = ()
    """Rules and limits on trial (`dry_run`) that would have refused the call."""

    tried: tuple[Tried, ...] = ()
    """Every rule that was tried; `ActionGuard.decide` alone collects them."""

    degraded: Degraded = ""
    """The way in which the call was admitted while the store was away."""

    approval_id: str | None = None
    """The request for approval that stays open: the same call finds its answer."""

    expires_at: float | None = None
    """The end of that request, in seconds since 1970 (UTC)."""

    approvers: int = 1
    """The people who have to approve a call under `ask`."""

    @property
    def allowed(self) -> bool:
        """True if the call may run."""
        return self.verdict == "allow"

    def to_json(self) -> dict[str, Any]:
        """Return the decision as JSON values, without empty members."""
        members: dict[str, Any] = {"verdict": self.verdict, "reason": self.reason}
        members |= {"approvers": self.approvers} if self.approvers > 1 else {}
        if self.detail:
            members["detail"] = self.detail
        if self.rule:
            members["rule"] = self.rule
        if self.retry_after is not None:
            members["retry_after"] = self.retry_after
        if self.remaining:
            members["remaining"] = dict(self.remaining)
        if self.policy_version:
            members["policy_version"] = self.policy_version
        if self.would_deny:
            members["would_deny"] = list(self.would_deny)
        if self.degraded:
            members["degraded"] = self.degraded
        if self.approval_id is not None:
            members["approval_id"] = self.approval_id
            members["expires_at"] = self.expires_at
        if self.tried:
            members["tried"] = [
                {"rule": each.rule, "met": each.met, "detail": each.detail}
                for each in self.tried
            ]
        return members

    def to_error(self) -> GuardError:
        """Return the error of a refused call; its details are the decision."""
        hint = None
        if self.retry_after is not None:
            hint = f"try again {_when(self.retry_after, self.decided_at)}"
        elif self.expires_at is not None and self.expires_at > (self.decided_at or 0):
            end = datetime.fromtimestamp(self.expires_at, UTC)
            hint = (
                f"the request {self.approval_id} can be answered until "
                f"{end:%Y-%m-%d %H:%M} UTC, and the same call finds the answer"
            )
        kind: type[GuardError] = GuardDeniedError
        if self.reason == "store_unavailable":
            kind = StoreUnavailableError
        return kind(self.detail or self.reason, hint=hint, details=self.to_json())


def _when(seconds: float, now: float | None) -> str:
    """Return a time for people: never too early, tenths of seconds only below ten."""
    if seconds < 10:
        return f"in {math.ceil(seconds * 10) / 10:g} s"
    if seconds <= 120:
        return f"in {math.ceil(seconds)} s"
    minutes = math.ceil(seconds / 60)
    parts = ((minutes // 1440, "d"), (minutes // 60 % 24, "h"), (minutes % 60, "min"))
    length = " ".join(f"{count} {unit}" for count, unit in parts if count)
    if now is None:
        return f"in {length}"
    at = datetime.fromtimestamp(math.ceil((now + seconds) / 60) * 60, UTC)
    day = f"on {at:%Y-%m-%d} " if seconds >= 86_400 else ""
    return f"{day}at {at:%H:%M} UTC (in {length})"


@dataclass(frozen=True, slots=True)
class Ruling:
    """The verdict of the rules on a call, before any limit counts."""

    verdict: GuardVerdict
    reason: Reason
    rule: str | None = None
    detail: str = ""
    would_deny: tuple[str, ...] = ()
    tried: tuple[Tried, ...] = ()
    approvers: int = 1
    """The people who have to approve, if the verdict is `ask`."""

    def approved(self) -> Ruling:
        """Return this ruling as allowed: a person approved it, or nobody had to."""
        if self.verdict == "allow":
            return self
        return replace(self, verdict="allow", reason="allowed", detail="", approvers=1)


class Caps(NamedTuple):
    """Limits on repetition within a run; None for no limit."""

    consecutive: int | None = None
    """Calls of one tool in a row."""

    identical: int | None = None
    """Times that one call gave one result, among the run's last calls."""


NO_CAPS = Caps()
