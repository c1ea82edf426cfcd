"""Facts about a call that come from the host, and the hashes made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import JsonValue
from pydantic_core import to_json

from toolcell.core import InvalidInputError, ToolCall
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
