"""The limits of policies, as lines that a store takes or refuses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolcell.core import InvalidInputError, ToolCall

from .clock import microseconds
from .decision import Reason
from .facts import CallFacts
from .policy import AgentPolicy, Budget, limit_key
from .rates import MICROSECONDS, Per, RateLimit
from .selectors import Tools
from .store import Charge, Hit, Reservation
from .units import MEASURED

_HOUR = 3600 * MICROSECONDS
_DAY = 24 * _HOUR
_KEEP = {
    "run": 7 * _DAY,
    "turn": 7 * _DAY,
    "hour": 2 * _DAY,
    "day": 3 * _DAY,
    "month": 34 * _DAY,
    "open": _DAY,
    "total": 0,
}
"""How long an unused account is remembered; past its window by a day at least."""

_MAX_PLANS = 4096


def _month(now: int) -> str:
    return time.strftime("%Y-%m", time.gmtime(now // MICROSECONDS))


def _next_month(now: int) -> int:
    day = now // _DAY
    while _month(day * _DAY) == _month(now):
        day += 1
    return day * _DAY


_PERIODS: dict[str, Callable[[int], object]] = {
    "hour": lambda now: now // _HOUR,
    "day": lambda now: now // _DAY,
    "month": _month,
}
_ENDS: dict[str, Callable[[int], int]] = {
    "hour": lambda now: (now // _HOUR + 1) * _HOUR,
    "day": lambda now: (now // _DAY + 1) * _DAY,
    "month": _next_month,
}


class MissingFacts(InvalidInputError):
    """A limit needs to know the run or the turn of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a line of a request stands for."""

    reason: Reason
    label: str
    """How decisions call it."""

    most: int
    unit: str = "calls"
    """A unit, or `slots` for calls at once."""

    window: str = "total"

    def ends(self, now: int) -> int | None:
        """Return when the account starts anew; None if time does not help."""
        end = _ENDS.get(self.window)
        return end(now) if end else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Account:
    """A charge without what differs from call to call."""

    key: str
    limit: Limit
    refund: bool = False
    enforced: bool = True

    def charge(self, facts: CallFacts, now: int) -> Charge:
        limit = self.limit
        window = limit.window
        key = self.key
        if window in _PERIODS:
            key = f"{key}|{_PERIODS[window](now)}"
        elif window in ("run", "turn"):
            key = f"{key}|{_run_key(limit, facts)}"
        amount = _amount(limit.unit, facts)
        return Charge(
            key, amount, limit.most, _KEEP[window], self.refund, self.enforced
        )


def _run_key(limit: Limit, facts: CallFacts) -> str:
    """Return the run, or the turn of it.

    Raises:
        MissingFacts: The call does not say.
    """
    if limit.window == "run" and facts.run_id is not None:
        return facts.run_id
    if limit.window == "turn" and (facts.run_id, facts.turn) != (None, None):
        return repr((facts.run_id, facts.turn))
    raise MissingFacts(f"{limit.label} needs to know the call's {limit.window}")


def _amount(unit: str, facts: CallFacts) -> int | None:
    if unit in ("calls", "slots"):
        return 1
    if facts.amounts is None:
        return None
    return facts.amounts.get(unit, None if unit in MEASURED else 0)


class Lines:
    """The lines of one call, of all the policies that bound it.

    Raises:
        MissingFacts: A limit needs to know the run or the turn.
    """

    def __init__(
        self, chain: Sequence[Quotas], call: ToolCall, facts: CallFacts, now: int
    ) -> None:
        self.now = now
        plans = [quotas.plan(call.name) for quotas in chain]
        rates = [each for plan in plans for each in plan[0]]
        accounts = [each for plan in plans for each in plan[1]]
        self.hits = [hit for hit, _ in rates]
        self.charges = [account.charge(facts, now) for account in accounts]
        self.limits = [limit for _, limit in rates]
        self.limits += [account.limit for account in accounts]
        if len(chain) > 1:
            self._merge()

    @property
    def on_trial(self) -> bool:
        """Whether some line only counts."""
        free = (hit for hit in self.hits if not hit.enforced)
        return any(free) or not all(charge.enforced for charge in self.charges)

    def request(self, hold_id: str, facts: CallFacts) -> Reservation:
        """Return what to ask of the store."""
        return Reservation(
            hold_id, self.hits, self.charges, microseconds(facts.hold_seconds)
        )

    def add_outage(self, charge: Charge) -> None:
        """Add the line that a stand-in for the store adds."""
        self.charges.append(charge)
        self.limits.append(
            Limit(reason="store_unavailable", label="outage", most=charge.limit)
        )

    def _merge(self) -> None:
        """Keep one line of those that share a counter: the tightest."""
        lines: list[Hit | Charge] = [*self.hits, *self.charges]
        order = sorted(range(len(lines)), key=lambda i: (lines[i].limit, i))
        order.sort(key=lambda i: not lines[i].enforced)
        tightest: dict[str, int] = {}
        for index in order:
            tightest.setdefault(lines[index].key, index)
        kept = sorted(tightest.values())
        self.limits = [self.limits[index] for index in kept]
        self.charges = [
            self.charges[index - len(self.hits)]
            for index in kept
            if index >= len(self.hits)
        ]
        self.hits = [self.hits[index] for index in kept if index < len(self.hits)]


class Quotas:
    """The limits of one agent."""

    def __init__(self, policy: AgentPolicy) -> None:
        self._agent = policy.agent_id
        self._rates = [
            (rate, Tools(policy.expand(rate.tools))) for rate in policy.rate_limits
        ]
        self._budgets = [
            (budget, Tools(policy.expand(budget.tools))) for budget in policy.budgets
        ]
        self._own = self._agent_accounts(policy)
        self._plans: dict[str, tuple[list[tuple[Hit, Limit]], list[_Account]]] = {}

    def plan(self, tool: str) -> tuple[list[tuple[Hit, Limit]], list[_Account]]:
        """Return the rates and accounts that calls of a tool count against."""
        found = self._plans.get(tool)
        if found is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            rates = [self._hit(rate, tool) for rate, on in self._rates if tool in on]
            budgets = [self._account(b, tool) for b, on in self._budgets if tool in on]
            found = self._plans[tool] = (rates, [*self._own, *budgets])
        return found

    def _agent_accounts(self, policy: AgentPolicy) -> list[_Account]:
        accounts = []
        if policy.max_concurrency is not None:
            slots = Limit(
                reason="concurrency",
                label=f"{self._agent} max_concurrency",
                most=policy.max_concurrency,
                unit="slots",
                window="open",
            )
            key = f"{self._prefix('agent', '')}slots"
            accounts.append(_Account(key=key, limit=slots, refund=True))
        if policy.max_calls_per_turn is not None:
            turn = Limit(
                reason="turn_limit",
                label=f"{self._agent} max_calls_per_turn",
                most=policy.max_calls_per_turn,
                window="turn",
            )
            key = f"{self._prefix('agent', '')}turn"
            accounts.append(_Account(key=key, limit=turn))
        return accounts

    def _hit(self, rate: RateLimit, tool: str) -> tuple[Hit, Limit]:
        most = rate.burst or rate.calls
        limit = Limit(
            reason="rate_limited",
            label=self._label(f"{rate.calls} calls/{rate.seconds} s", rate, tool),
            most=most,
        )
        hit = Hit(
            key=f"{self._prefix(rate.per, tool)}{limit_key(rate)}",
            limit=most,
            window=rate.window,
            interval=rate.interval,
            enforced=not rate.dry_run,
        )
        return hit, limit

    def _account(self, budget: Budget, tool: str) -> _Account:
        limit = Limit(
            reason="budget_exceeded",
            label=self._label(f"{budget.unit}/{budget.window}", budget, tool),
            most=budget.amount,
            unit=budget.unit,
            window=budget.window,
        )
        return _Account(
            key=f"{self._prefix(budget.per, tool)}{limit_key(budget)}",
            limit=limit,
            refund=budget.unsettled == "refund",
            enforced=not budget.dry_run,
        )

    def _prefix(self, per: Per, tool: str) -> str:
        """Return how keys of a scope begin; no id or name holds a `|`."""
        return {
            "global": "global|",
            "agent": agent_prefix(self._agent),
            "tool": f"tool|{tool}|",
            "agent_tool": f"{agent_prefix(self._agent)}tool|{tool}|",
        }[per]

    def _label(self, what: str, limit: RateLimit | Budget, tool: str) -> str:
        names = {"global": ["all"], "agent": [self._agent], "tool": [tool]}
        scope = names.get(limit.per, [self._agent, tool])
        chosen = [] if limit.tools == ("*",) else [f"({', '.join(limit.tools)})"]
        return " ".join([*scope, what, *chosen])


def agent_prefix(agent_id: str) -> str:
    """Return how the keys of an agent's own counters begin."""
    return f"agent|{agent_id}|"
