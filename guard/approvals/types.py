"""Requests for approval, replies of people, and their outcomes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from toolcell.core import InvalidInputError, ToolCall
from toolcell.core.text.canonical_json import canonical_json

from ..values.calls import CallFacts, call_hash

GRANT_SECONDS = 86_400
"""Longest time of a grant in seconds. A longer one is refused."""

PREVIEW_CHARACTERS = 10_000
"""Longest preview of a call, in characters. When it is reached the rest is cut off, and
the preview says so."""

REASON_CHARACTERS = 2_000
"""Longest reason of a reply, in characters. A longer one is refused."""

AUTO = "auto:"
"""Start of the approver's name of a call that no person has approved."""

_SHELL_TAGS = frozenset({"shell", "interpreter", "code"})
_SHELL_WORDS = frozenset(
    "bash cmd code command eval exec execute interpreter node perl powershell program "
    "python repl ruby script sh shell sql subprocess terminal zsh".split()
)
_SHELL_ARGUMENTS = frozenset(
    "argv cmd code command commands program script sql".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A call that waits for an answer. The answer counts for this very call alone."""

    id: str
    call: ToolCall
    """The call that is asked for, with its agent."""

    run_id: str | None
    """The run in which the call is made; the answer counts in no other."""

    version: str
    """The version of the tool."""

    definition_hash: str
    """The hash of the tool's definition."""

    tags: frozenset[str]
    """The tags of the tool."""

    rule: str
    """The rule that says to ask."""

    asked_at: float
    """Seconds since 1970 (UTC)."""

    expires_at: float
    """The time at which the request, or an approval that nobody has used, expires."""

    calls: int = 1
    """The calls that this one stands for; more than 1 are a batch."""

    approvers: int = 1
    """The people who have to approve it."""

    preview: str = ""
    """The effect of the call in the words of its tool, which nothing checks. Empty: the
    tool says nothing."""

    approved_by: tuple[str, ...] = ()
    """Those of several who have approved it so far, in their order."""

    waits_until: float | None = None
    """The time at which its call gives up waiting, in seconds since 1970 (UTC); that of
    a parked one is `expires_at`. None: unknown."""

    def is_waited_for(self, now: float) -> bool:
        """Return whether its call still waits at a time, as far as is known."""
        return self.waits_until is None or now < self.waits_until

    @property
    def facts(self) -> CallFacts:
        """The facts to which the answer is bound beside the call."""
        return CallFacts(
            calls=self.calls,
            version=self.version,
            definition_hash=self.definition_hash,
            tags=self.tags,
            run_id=self.run_id,
        )

    @property
    def digest(self) -> str:
        """A hash of the call and the facts to which the answer is bound."""
        return call_hash(self.call, self.facts, self.approvers)

    @property
    def shell_like(self) -> bool:
        """True if the tool runs its arguments as code, by its tags and names."""
        return is_shell_like(self.call, self.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Permission for more calls like the approved one, by the same agent, for a time.

    It covers the same tool, version and definition only, in every run of the agent.

    Raises:
        InvalidInputError: `seconds` is not above 0 and at most a day.
    """

    seconds: float = 3600.0
    """Seconds that it lasts; default 3,600. When it is over people are asked again."""

    arguments: tuple[str, ...] | None = None
    """Names of the arguments that must stay the same; the others are free. None: this
    exact call. Empty: the tool with any arguments. A tool that runs what its arguments
    say (shells, interpreters) can be granted by the exact call only."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= GRANT_SECONDS:
            raise InvalidInputError(
                f"a grant lasts above 0 and at most {GRANT_SECONDS} seconds",
                hint="give seconds of that range, such as 3600",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Approve:
    """A reply: the call may run."""

    approver: str
    """The name of the person who approves. Never the agent itself."""

    arguments: dict[str, JsonValue] | None = None
    """Arguments to run it with instead; they go through the policy again."""

    grant: Grant | None = None
    """Permission for further calls; default none."""

    seen: str | None = None
    """`ShownRequest.digest` of the request as this person saw it. None: the approver is
    a program that has the request itself. Hidden parts have to be seen: an approval of
    a request that has some does not count without the digest of the opened one, except
    with `arguments` of the approver's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A reply: the call may not run, nor be asked for again in its run."""

    approver: str
    """The name of the person who rejects."""

    reason: str = ""
    """Shown to the model, at most 2,000 characters; a longer one is refused."""


Preview = Callable[[], Awaitable[str]]
"""Returns what a call would do, in the words of its tool."""

ApprovalReply = Approve | Reject
"""The answer of a person."""

ApprovalHandler = Callable[
    [ApprovalRequest], Awaitable[ApprovalReply | None] | ApprovalReply | None
]
"""Asks a person; None leaves the request to others. A plain function is called in a
thread, and may wait there."""


class AutoApprove:
    """Approves every call that is asked for, without a person. For tests and pipelines.

    `Approvals` takes it in the profile `development` only, and each approval is
    recorded as `auto:` and the name.

    Args:
        by: Name of what approves, such as a pipeline.
    """

    def __init__(self, *, by: str) -> None:
        check_name(by)
        self.by = by

    async def __call__(self, request: ApprovalRequest) -> ApprovalReply:
        return Approve(approver=f"{AUTO}{self.by}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalOutcome:
    """The outcome of asking about a call."""

    status: Literal["approved", "rejected", "unanswered"]
    call: ToolCall
    """The call to run: as asked, or with the arguments that the approver gave."""

    reason: str = ""
    """The reason of a refusal, for the model."""

    approver: str | None = None
    """The person who answered; of several who approved, the last one."""

    approved_by: tuple[str, ...] = ()
    """All who approved the call, or the one who made the grant."""

    approval_id: str | None = None
    """The request that was answered."""

    grant_id: str | None = None
    """The grant that covers the call."""

    edited: bool = False
    """True if the approver changed the arguments."""

    expires_at: float | None = None
    """The end of a request that waits, in seconds since 1970 (UTC)."""

    @property
    def approved(self) -> bool:
        """True if a person approved the call, or a grant covers it."""
        return self.status == "approved"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingGrant:
    """A grant as the store has it."""

    id: str
    agent_id: str
    tool: str
    version: str
    definition_hash: str
    fixed: dict[str, JsonValue]
    """Arguments that must be the same."""

    exact: bool
    """True if a covered call may have no other arguments."""

    expires_at: float
    """Seconds since 1970 (UTC)."""

    approver: str

    def covers(self, call: ToolCall, facts: CallFacts) -> bool:
        """Return whether the grant covers a call; expiry is not checked."""
        same = (call.agent_id, call.name, facts.version, facts.definition_hash)
        if same != (self.agent_id, self.tool, self.version, self.definition_hash):
            return False
        if self.exact:
            return canonical_json(call.arguments) == canonical_json(self.fixed)
        if is_shell_like(call, facts) or not self.fixed.keys() <= call.arguments.keys():
            return False
        given = {name: call.arguments[name] for name in self.fixed}
        return canonical_json(given) == canonical_json(self.fixed)


def is_shell_like(call: ToolCall, facts: CallFacts) -> bool:
    """Return whether a tool may run its arguments as code; in doubt True."""
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", call.name)}
    names = {name.lower() for name in call.arguments}
    tags = {tag.lower() for tag in facts.tags}
    return bool(words & _SHELL_WORDS or names & _SHELL_ARGUMENTS or tags & _SHELL_TAGS)


def is_same_name(one: str, other: str) -> bool:
    """Return whether two names differ only in case, width or punctuation."""
    return letters(one) == letters(other)


def check_name(name: str) -> None:
    """Refuse a name that names no person.

    Raises:
        InvalidInputError: The name has neither a letter nor a digit.
    """
    if not letters(name):
        raise InvalidInputError(
            "an approver needs a name", hint="pass the name of the person who answers"
        )


def letters(name: str) -> str:
    """Return the letters and digits of a name, the same for names that look alike."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return "".join(letter for letter in folded if letter.isalnum())


def is_automatic(name: str) -> bool:
    """Return whether a name is of an `AutoApprove`, and so of no person."""
    return unicodedata.normalize("NFKC", name).strip().casefold().startswith(AUTO)
