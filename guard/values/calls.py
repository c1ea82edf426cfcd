"""Facts about calls that come from the host, and decisions about them, with reasons."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pydantic import JsonValue
from pydantic_core import to_json

from toolcell.core import (
    GuardDeniedError,
    GuardError,
    InvalidInputError,
    StoreUnavailableError,
    ToolCall,
)
from toolcell.core.text.canonical_json import canonical_digest

from .amounts import Amount, microseconds, parse_amount

MAX_HOLD_SECONDS = 604_800
MAX_CALLS = 1_000_000
"""Calls of a batch. When it is exceeded the facts are refused."""


Via = Literal["model", "code"]
"""The way by which a call comes: a model asks for it, or a program's code makes it."""

ANY_WAY: frozenset[Via] = frozenset({"model", "code"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """Facts about a call that the host knows; none of them comes from the model.

    Raises:
        InvalidInputError: A cost is negative, not finite, too large or of an unknown
            unit, or `hold_seconds`, `calls` or `at_once` is out of range.
    """

    version: str = ""
    """The version of the tool."""

    tags: frozenset[str] = frozenset()
    """The tags of the tool, as registered."""

    definition_hash: str = ""
    """The hash of the tool's definition; an approval is bound to it."""

    cost: Mapping[str, Amount] | None = None
    """The declared maximum by unit. None: it is unknown, and the call holds all that is
    left of each budget until it settles. In a mapping, usd and tokens that are not
    named are 0; cpu_ms, wall_ms and bytes that are not named are unknown."""

    requires_approval: bool = False
    """True if a person has to agree even where a rule allows the call."""

    approval_seconds: float | None = None
    """Seconds that the call may wait for a person. 0 asks no one: only an earlier
    approval or a grant counts. None: the `wait_seconds` of the guard's approvals. When
    it is reached the call is refused."""

    park: bool = False
    """True: a request for approval is opened even if nobody may wait for it, and stays
    open; the refusal of the call names it. The same call finds its answer later."""

    run_id: str | None = None
    """The run of the agent in which the call is made."""

    turn: str | None = None
    """The model's turn within the run."""

    via: Via = "model"
    """The way by which the call comes."""

    callers: frozenset[Via] = ANY_WAY
    """The ways that the tool accepts. A call that comes by another one is refused."""

    calls: int = 1
    """The calls that this one stands for; default 1. A batch is admitted whole or not
    at all: it counts as so many in rates and budgets, and `cost` is that of all."""

    at_once: int = 1
    """Those of them that run at once; default 1. Each holds a slot of
    `max_concurrency`."""

    hold_seconds: float = 3600.0
    """Seconds that a reservation may stay open; default 3,600. When it is reached the
    hold expires and its maximum is charged; a later settlement corrects that."""

    amounts: Mapping[str, int] | None = field(init=False, repr=False, compare=False)
    """`cost` as whole numbers."""

    hold_microseconds: int = field(init=False, repr=False, compare=False)
    """`hold_seconds` in microseconds."""

    def __post_init__(self) -> None:
        if not 0 < self.hold_seconds <= MAX_HOLD_SECONDS:
            raise InvalidInputError(
                f"hold_seconds must be above 0 and at most {MAX_HOLD_SECONDS}",
                hint="give seconds of that range, such as 60",
            )
        if not 1 <= self.at_once <= self.calls <= MAX_CALLS:
            raise InvalidInputError(
                f"{self.calls} calls, {self.at_once} at once, are no batch",
                hint=f"calls is 1 to {MAX_CALLS:,}, and at_once 1 to calls",
            )
        amounts = self.cost and {k: parse_amount(k, v) for k, v in self.cost.items()}
        object.__setattr__(self, "amounts", amounts)
        object.__setattr__(self, "hold_microseconds", microseconds(self.hold_seconds))


NO_FACTS = CallFacts()


def ascii_json(value: Any) -> str:
    """Return JSON as ASCII text without spaces."""
    try:
        text = to_json(value).decode()
    except ValueError:  # half a surrogate pair
        text = ""
    return text if text.isascii() and text else json.dumps(value, separators=(",", ":"))


def call_hash(call: ToolCall, facts: CallFacts, approvers: int = 1) -> str:
    """Return a hash of the agent, the run, the tool, arguments and number of calls.

    An approval is bound to it, and so to the number of people who have to approve.
    """
    bound: list[JsonValue] = [
        *(call.agent_id, facts.run_id, call.name, facts.version),
        *(facts.definition_hash, call.arguments),
    ]
    # That of a single call for one person is as it was before there was anything else.
    if facts.calls != 1:
        bound.append(facts.calls)
    if approvers != 1:
        bound.append({"approvers": approvers})
    return canonical_digest(bound)


GuardVerdict = Literal["allow", "ask", "deny"]
Degraded = Literal["", "local", "open"]
Reason = Literal[
    "allowed",
    "no_agent",
    "no_policy",
    "bad_call",
    "no_tool",
    "credential_misplaced",
    "credential_unreadable",
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
credential where its value may not go. credential_unreadable: the value that a
program's request needs cannot be read. denied: a rule denies it.
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
