"""The limits of policies, as lines that a store takes or refuses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


class MissingFacts(Exception):
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


class Account:
    """A charge without what differs from call to call."""

    def __init__(
        self, key: str, limit: Limit, *, refund: bool = False, enforced: bool = True
    ) -> None:
        self.key = key
        self.limit = limit
        self.enforced = enforced
        self._refund = refund
        self._keep = _KEEP[limit.window]
        self._counts = limit.unit in ("calls", "slots")
        self._period = _PERIODS.get(limit.window)
        self._of_run = limit.window in ("run", "turn")
        self._same: Charge | None = None
        if self._counts and self._period is None and not self._of_run:
            self._same = self._charge(key, 1)

    def charge(self, facts: CallFacts, now: int) -> Charge:
        """Return what a call must hold.

        Raises:
            MissingFacts: The account needs to know the run or the turn.
        """
        if self._same is not None:
            return self._same
        key = self.key
        if self._period is not None:
            key = f"{key}|{self._period(now)}"
        elif self._of_run:
            key = f"{key}|{_run_key(self.limit, facts)}"
        return self._charge(key, 1 if self._counts else _amount(self.limit.unit, facts))

    def _charge(self, key: str, amount: int | None) -> Charge:
        most = self.limit.most
        return Charge(key, amount, most, self._keep, self._refund, self.enforced)


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
    if facts.amounts is None:
        return None
    return facts.amounts.get(unit, None if unit in MEASURED else 0)


class Plan:
    """What calls of one tool count against, in all the policies that bound them."""

    def __init__(self, chain: Sequence[Quotas], tool: str) -> None:
        hits = [each for quotas in chain for each in quotas.hits(tool)]
        accounts = [each for quotas in chain for each in quotas.accounts(tool)]
        lines = [(hit.key, hit.limit, hit.enforced) for hit, _ in hits]
        lines += [(each.key, each.limit.most, each.enforced) for each in accounts]
        kept = _tightest(lines)
        self.hits = [hit for i, (hit, _) in enumerate(hits) if i in kept]
        self.accounts = [
            each for i, each in enumerate(accounts, len(hits)) if i in kept
        ]
        self.limits = [limit for i, (_, limit) in enumerate(hits) if i in kept]
        self.limits += [each.limit for each in self.accounts]
        self.on_trial = not all(enforced for _, _, enforced in lines)


def _tightest(lines: Sequence[tuple[str, int, bool]]) -> set[int]:
    """Return which lines to keep of those that share a counter: one for each."""
    order = sorted(range(len(lines)), key=lambda i: (not lines[i][2], lines[i][1], i))
    kept: dict[str, int] = {}
    for index in order:
        kept.setdefault(lines[index][0], index)
    return set(kept.values())


class Lines:
    """The lines of one call.

    Raises:
        MissingFacts: A limit needs to know the run or the turn.
    """

    def __init__(self, plan: Plan, facts: CallFacts, now: int) -> None:
        self.now = now
        self.hits = plan.hits
        self.charges = [account.charge(facts, now) for account in plan.accounts]
        self.limits = plan.limits
        self.on_trial = plan.on_trial

    def request(self, hold_id: str, facts: CallFacts) -> Reservation:
        """Return what to ask of the store."""
        return Reservation(hold_id, self.hits, self.charges, facts.hold)

    def add_outage(self, charge: Charge) -> None:
        """Add the line that a stand-in for the store adds."""
        outage = Limit(reason="store_unavailable", label="outage", most=charge.limit)
        self.charges = [*self.charges, charge]
        self.limits = [*self.limits, outage]


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

    def hits(self, tool: str) -> list[tuple[Hit, Limit]]:
        """Return the rates that calls of a tool count against."""
        return [self._hit(rate, tool) for rate, on in self._rates if tool in on]

    def accounts(self, tool: str) -> list[Account]:
        """Return the accounts that calls of a tool draw on."""
        budgets = [self._account(b, tool) for b, on in self._budgets if tool in on]
        return [*self._own, *budgets]

    def _agent_accounts(self, policy: AgentPolicy) -> list[Account]:
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
            accounts.append(Account(key, slots, refund=True))
        if policy.max_calls_per_turn is not None:
            turn = Limit(
                reason="turn_limit",
                label=f"{self._agent} max_calls_per_turn",
                most=policy.max_calls_per_turn,
                window="turn",
            )
            key = f"{self._prefix('agent', '')}turn"
            accounts.append(Account(key, turn))
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

    def _account(self, budget: Budget, tool: str) -> Account:
        limit = Limit(
            reason="budget_exceeded",
            label=self._label(f"{budget.unit}/{budget.window}", budget, tool),
            most=budget.amount,
            unit=budget.unit,
            window=budget.window,
        )
        return Account(
            f"{self._prefix(budget.per, tool)}{limit_key(budget)}",
            limit,
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
