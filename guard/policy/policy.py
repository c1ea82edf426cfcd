"""The policy of one agent: its rules and its limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from toolcell.core import InvalidInputError

from ..values.amounts import Unit, parse_amount
from ..values.calls import Via
from .aliases import ALIAS_SCHEMA, translate_aliases
from .base import PolicyModel
from .conditions import Condition, Path, parse_path
from .rate_limit import Per, RateLimit
from .selectors import PRESETS, Selector

_AGENT = r"^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}$"
AgentId = Annotated[str, Field(pattern=_AGENT)]
Cap = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]


class Rule(PolicyModel):
    """A rule about calls; a plain text is a rule for that selector.

    A call meets the rule if it meets everything that is given: one of `tools`, all of
    `tags`, one of `versions`, `via`, and every condition of `when`.
    """

    if TYPE_CHECKING:
        # Lists and plain texts are taken too.
        def __init__(self, **values: Any) -> None: ...

    tools: tuple[Selector, ...] = ()
    """Names, globs and groups of tools; empty with `tags`: any tool with those tags."""

    tags: tuple[str, ...] = ()
    """Tags that the tool must have, all of them."""

    versions: tuple[str, ...] = ()
    """Versions, one of which the tool must have; empty: any."""

    via: Via | None = None
    """The way by which the call comes: `model`, which asks for it itself, or `code`, a
    program that makes it. None: either."""

    when: dict[str, Condition] = Field(default_factory=dict)
    """Conditions by argument; `a.b` reaches into objects and into every element of
    lists, `"a.b"` in quotes is one name, `*` is all arguments as a whole. A value that
    cannot be reached exactly counts against the caller."""

    name: str | None = None
    """The name of the rule in decisions. None: its place, as `agent.deny[0]`."""

    dry_run: bool = False
    """Report what the rule would do, and do nothing. Not for allow rules."""

    approvers: Annotated[int, Field(ge=1, le=10, strict=True)] = 1
    """The people who have to approve a call, for ask rules alone; one refusal ends it.
    Of several rules that ask, the one that asks most people counts. With more than one,
    grants, edited arguments and the user at the agent's own client do not count."""

    @property
    def paths(self) -> tuple[tuple[Path, Condition], ...]:
        """The conditions, each with the path of its values."""
        return tuple((parse_path(text), each) for text, each in self.when.items())

    @field_validator("when")
    @classmethod
    def _reads_as_paths(cls, value: dict[str, Condition]) -> dict[str, Condition]:
        for text in value:
            parse_path(text)
        return value

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"tools": (value,)} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string"}, handler(schema)]}

    @model_validator(mode="after")
    def _names_something(self) -> Rule:
        if not self.tools and not self.tags:
            raise ValueError("a rule needs 'tools' or 'tags'; '*' is every tool")
        return self


class Budget(PolicyModel):
    """A limit on the use of a unit; `used + held + cost <= limit` always holds.

    When it is reached a call is refused with `budget_exceeded`, and consumes nothing.
    """

    unit: Unit
    """`usd`, `tokens`, `calls`, `cpu_ms`, `wall_ms` or `bytes`."""

    limit: int | str
    """The limit in the unit; for usd a decimal as text with at most six places."""

    window: Literal["run", "hour", "day", "month", "total"] = "total"
    """The period after which it starts anew: each run, or the hour, day or month in
    UTC. `total` never does. A run that has been idle for two days is forgotten."""

    per: Per = "agent"
    """The calls that share it: `global` all, `agent` those of one agent, `tool` those
    to one tool, `agent_tool` those of one agent to one tool."""

    tools: tuple[Selector, ...] = ("*",)
    """The tools whose calls count, by name or glob."""

    unsettled: Literal["charge", "refund"] = "charge"
    """The charge for a call that ends without a report: all that it held, or none."""

    dry_run: bool = False
    """Count and report, but refuse nothing."""

    @field_validator("limit", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        if isinstance(value, float | bool):
            raise ValueError('not exact; write a decimal as text, such as "0.25"')
        return str(value) if isinstance(value, Decimal) else value

    @field_validator("limit")
    @classmethod
    def _whole(cls, value: int | str, info: ValidationInfo) -> int | str:
        unit = info.data.get("unit", "")
        try:
            amount = parse_amount(unit, value)
        except InvalidInputError as error:
            raise ValueError(str(error)) from None
        if unit == "usd" and amount != Decimal(value) * 1_000_000:
            raise ValueError("usd have at most six decimal places")
        return value

    @property
    def amount(self) -> int:
        """The limit as a whole number, usd in millionths."""
        return parse_amount(self.unit, self.limit)


class AgentPolicy(PolicyModel):
    """The rules and limits of one agent. A call that no allow rule meets is refused.

    Deny rules come first, then ask, then allow. The field names of other guards
    (`allowed_tools`, `denied_tools`, `max_calls_per_minute`, `max_cost_usd`,
    `denied_domains`, `max_tool_calls_per_turn`, `max_consecutive_tool_calls`,
    `require_human_approval_for`) load too; an empty or absent list allows nothing.
    """

    if TYPE_CHECKING:
        # Lists and plain texts are taken too.
        def __init__(self, **values: Any) -> None: ...

    agent_id: AgentId
    """The agent as the host knows it; compared exactly."""

    parent: AgentId | None = None
    """The agent whose policy this one narrows: a call has to pass both policies, and
    counts against the limits of both."""

    deny: tuple[Rule, ...] = ()
    """Calls that are refused, whatever other rules say."""

    ask: tuple[Rule, ...] = ()
    """Calls that wait for a person."""

    allow: tuple[Rule, ...] = ()
    """Calls that run. Those that no rule names are refused."""

    groups: dict[str, tuple[Selector, ...]] = Field(default_factory=dict)
    """Tools by the name of a group, used as `@name`; beside the groups `harmless`,
    `read`, `write`, `code`, `code_mode` and `network` of the tools that come with
    toolcell."""

    rate_limits: tuple[RateLimit, ...] = ()
    """Calls in a time, such as `"60/minute"`."""

    max_concurrency: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] | None = (
        None
    )
    """Calls of the agent at once. When it is reached a call is refused with
    `concurrency`. None: no limit."""

    budgets: tuple[Budget, ...] = ()
    """Amounts of a unit in a time, such as dollars in a day."""

    max_calls_per_turn: Cap | None = None
    """Calls in one turn of a run. When it is reached a call is refused with
    `turn_limit`. None: no limit."""

    max_consecutive_calls: Cap | None = None
    """Calls of one tool in a row within a run. When it is reached a call of that tool
    is refused with `consecutive` until another one was called. None: no limit."""

    max_identical_results: Cap | None = None
    """Times that one call may return one result among the run's last 32 calls. When it
    is reached the call is refused with `repeated`. None: no limit."""

    @model_validator(mode="before")
    @classmethod
    def _translated(cls, value: Any) -> Any:
        return translate_aliases(value) if isinstance(value, dict) else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        written = handler(schema)
        handler.resolve_ref_schema(written)["properties"].update(ALIAS_SCHEMA)
        return written

    @model_validator(mode="after")
    def _consistent(self) -> AgentPolicy:
        if any(rule.dry_run for rule in self.allow):
            raise ValueError("an allow rule cannot be on trial; leave it out")
        if any(rule.approvers != 1 for rule in (*self.deny, *self.allow)):
            raise ValueError("'approvers' is for rules that ask")
        known = PRESETS.keys() | self.groups.keys()
        for selector in self._selectors():
            if selector.startswith("@") and selector[1:] not in known:
                raise ValueError(f"there is no group {selector!r}")
        for limits in (self.rate_limits, self.budgets):
            names = [limit_key(limit) for limit in limits]
            if len(names) != len(set(names)):
                raise ValueError("two limits count the same; keep the smaller one")
        return self

    def _selectors(self) -> Iterator[str]:
        for rule in (*self.deny, *self.ask, *self.allow):
            yield from rule.tools
        limits: list[RateLimit | Budget] = [*self.rate_limits, *self.budgets]
        for limit in limits:
            yield from limit.tools

    def expand(self, selectors: Iterable[str]) -> tuple[str, ...]:
        """Return selectors with groups replaced by their tools."""
        found: list[str] = []
        for selector in selectors:
            if selector.startswith("@"):
                name = selector[1:]
                found += self.groups.get(name) or PRESETS[name]
            else:
                found.append(selector)
        return tuple(found)


def limit_key(limit: RateLimit | Budget) -> str:
    """Return the name of what a limit counts; limits with one name share a counter."""
    tools = ",".join(limit.tools)
    if isinstance(limit, Budget):
        return f"{limit.unit}/{limit.window}|{limit.per}|{tools}"
    pace = f"{limit.calls}:{limit.burst}" if limit.algorithm == "bucket" else "window"
    return f"{pace}/{limit.seconds}s|{limit.per}|{tools}"
