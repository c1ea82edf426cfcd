"""The limits of policies, as lines that a store takes or refuses."""

from __future__ import annotations

import calendar
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..policy.policy import AgentPolicy, Budget, limit_key
from ..policy.rate_limit import Per, RateLimit
from ..policy.selectors import ToolNames
from ..stores.base import AccountLevel, Charge, Demand, RateHit, Reservation
from ..values.amounts import MEASURED, MICROSECONDS
from ..values.calls import CallFacts, Reason

_HOUR = 3600 * MICROSECONDS
_DAY = 24 * _HOUR
_KEEP = {
    # A call of a run may wait a day for a person.
    "run": 2 * _DAY,
    "turn": 2 * _DAY,
    "hour": 2 * _DAY,
    "day": 3 * _DAY,
    "month": 34 * _DAY,
    "open": _DAY,
    "total": 0,
}
"""Microseconds that an unused account is remembered: a day past its window or more."""


_NAMES: dict[str, Callable[[int], object]] = {
    "hour": lambda now: now // _HOUR,
    "day": lambda now: now // _DAY,
    "month": lambda now: time.strftime("%Y-%m", time.gmtime(now // MICROSECONDS)),
}
"""Functions that return the name of the period of a time, for keys of accounts."""

_NEVER = 2**62


def _month(now: int) -> tuple[int, int]:
    """Return the begin and the end of the month of a time, in microseconds."""
    year, month, *_ = time.gmtime(now // MICROSECONDS)
    begins, ends = (year, month), (year + month // 12, month % 12 + 1)
    first, last = (calendar.timegm((*each, 1, 0, 0, 0)) for each in (begins, ends))
    return first * MICROSECONDS, last * MICROSECONDS


def _period(window: str, now: int) -> tuple[int, int]:
    """Return the begin and the end of the period of a time, in microseconds."""
    if window == "month":
        return _month(now)
    length = {"hour": _HOUR, "day": _DAY}.get(window)
    if length is None:
        return 0, _NEVER
    begins = now - now % length
    return begins, begins + length


class MissingFacts(Exception):
    """A limit needs to know the run or the turn of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The limit that a line of a reservation stands for."""

    reason: Reason
    label: str
    """The name of the limit in decisions."""

    amount: int
    unit: str = "calls"
    """A unit of cost, or `slots` for calls at once."""

    window: str = "total"

    def ends(self, now: int) -> int | None:
        """Return the end of the period, in microseconds; None if it has none."""
        end = _period(self.window, now)[1]
        return None if end == _NEVER else end


class ChargeTemplate:
    """The part of a charge that is the same for all calls of a tool."""

    def __init__(
        self, key: str, limit: Limit, *, refund: bool = False, enforced: bool = True
    ) -> None:
        self.key = key
        self.limit = limit
        self.enforced = enforced
        self._refund = refund
        self._keep = _KEEP[limit.window]
        self._of_run = limit.window in ("run", "turn")

    def charge(self, facts: CallFacts, now: int) -> Charge:
        """Return the charge of one call.

        Raises:
            MissingFacts: The account needs to know the run or the turn.
        """
        limit, key = self.limit, self.key
        if self._of_run:
            key = f"{key}|{_run_key(limit, facts)}"
        elif limit.window in _NAMES:
            key = f"{key}|{_NAMES[limit.window](now)}"
        amount = self._amount(facts)
        return Charge(
            key, amount, limit.amount, self._keep, self._refund, self.enforced
        )

    def _amount(self, facts: CallFacts) -> int | None:
        if self.limit.unit == "calls":
            return facts.calls
        if self.limit.unit == "slots":
            return facts.at_once
        return _amount(self.limit.unit, facts)


def _run_key(limit: Limit, facts: CallFacts) -> str:
    """Return the name of the run, or of the turn.

    Raises:
        MissingFacts: The facts of the call do not have it.
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


class LimitPlan:
    """The limits that calls of one agent to one tool count against.

    They are those of the agent's policy and of its ancestors'. Two limits that share a
    counter become one line, the tighter one, so that a call is counted once.
    """

    def __init__(self, chain: Sequence[Quotas], tool: str) -> None:
        hits = [hit for quotas in chain for hit in quotas.hits(tool)]
        accounts = [account for quotas in chain for account in quotas.accounts(tool)]
        lines = [(hit.key, hit.limit, hit.enforced) for hit, _ in hits]
        lines += [
            (account.key, account.limit.amount, account.enforced)
            for account in accounts
        ]
        tightest = _tightest(lines)
        self.hits = [hit for i, (hit, _) in enumerate(hits) if i in tightest]
        self.accounts = [
            account for i, account in enumerate(accounts, len(hits)) if i in tightest
        ]
        self.limits = [limit for i, (_, limit) in enumerate(hits) if i in tightest]
        self.limits += [account.limit for account in self.accounts]
        self.on_trial = not all(enforced for _, _, enforced in lines)
        self.home = chain[-1].agent_id if chain else ""
        """The topmost agent, with whose counters stores keep the others' together."""

        self._last: Lines | None = None

    def lines(self, facts: CallFacts, now: int) -> Lines:
        """Return the lines of one call.

        Those of the call before are returned if they are of the same facts and the
        same periods. A guarded tool call in memory takes 28 % less for that: the lines
        are not made anew, nor are their counters looked up.

        Raises:
            MissingFacts: A limit needs to know the run or the turn.
        """
        last = self._last
        same = last is not None and last.facts is facts
        if last is None or not (same and last.since <= now < last.until):
            charges = [account.charge(facts, now) for account in self.accounts]
            periods = [_period(limit.window, now) for limit in self.limits]
            since = max((begins for begins, _ in periods), default=0)
            until = min((ends for _, ends in periods), default=_NEVER)
            hits = self.hits
            if facts.calls != 1:
                hits = [hit._replace(calls=facts.calls) for hit in hits]
            demand = Demand(hits, charges, facts.hold_microseconds)
            last = Lines(
                facts, (since, until), demand, self.limits, self.home, self.on_trial
            )
            self._last = last
        return last

    def usage(self, facts: CallFacts, now: int) -> Lines:
        """Return lines for what was used already: they refuse nothing.

        Raises:
            MissingFacts: A limit needs to know the run or the turn.
        """
        accounts = [
            account for account in self.accounts if account.limit.unit in MEASURED
        ]
        charges = [a.charge(facts, now)._replace(enforced=False) for a in accounts]
        demand = Demand([], charges, facts.hold_microseconds)
        limits = [account.limit for account in accounts]
        return Lines(facts, (now, now), demand, limits, self.home, self.on_trial)


def _tightest(lines: Sequence[tuple[str, int, bool]]) -> set[int]:
    """Return the indexes of the tightest line of each counter."""
    order = sorted(range(len(lines)), key=lambda i: (not lines[i][2], lines[i][1], i))
    tightest: dict[str, int] = {}
    for index in order:
        tightest.setdefault(lines[index][0], index)
    return set(tightest.values())


class Lines:
    """The limits of calls with the same facts within one period, as lines of a store.

    `demand` has the rates first and then the charges; `limits` says in the same order
    what each line stands for.
    """

    __slots__ = (
        "demand",
        "facts",
        "home",
        "limits",
        "measured",
        "on_trial",
        "places",
        "since",
        "slots",
        "until",
    )

    def __init__(
        self,
        facts: CallFacts,
        period: tuple[int, int],
        demand: Demand,
        limits: Sequence[Limit],
        home: str,
        on_trial: bool,
    ) -> None:
        self.facts = facts
        self.since, self.until = period
        self.demand = demand
        self.limits = limits
        self.home = home
        self.on_trial = on_trial
        self.places: dict[str, list[int]] = {}
        """The indexes of the charges of each unit."""

        self.measured: list[tuple[int, str]] = []
        """The index and the unit of each charge that a settlement can change."""

        for place, limit in enumerate(limits[len(demand.hits) :]):
            self.places.setdefault(limit.unit, []).append(place)
            # Slots are counted by the guard, whatever cost is reported, and so is a
            # call that is not a batch.
            counted = limit.unit == "slots" or (limit.unit, facts.calls) == ("calls", 1)
            if not counted:
                self.measured.append((place, limit.unit))
        self.slots = self.places.get("slots", ())

    def due(
        self, levels: Sequence[AccountLevel], measured: Mapping[str, int]
    ) -> list[int]:
        """Return the charge of each account, given the measured amounts."""
        due = []
        for level in levels:
            due.append(level[2])  # noqa: PERF401  (a comprehension costs more here)
        if due:
            for place, unit in self.measured:
                if unit in measured:
                    due[place] = measured[unit]
            for place in self.slots:
                due[place] = 0
        return due

    def held(self, levels: Sequence[AccountLevel]) -> dict[str, int]:
        """Return the held amounts by unit."""
        if not levels:
            return {}
        return {unit: levels[places[-1]][2] for unit, places in self.places.items()}

    def name(self, hold_id: str) -> str:
        """Return the name that shared stores have for a hold."""
        return f"{self.home}|{hold_id}"

    def request(self, hold_id: str) -> Reservation:
        """Return the reservation to ask of a shared store."""
        demand = self.demand
        return Reservation(
            self.name(hold_id), demand.hits, demand.charges, demand.hold_microseconds
        )

    def with_outage(self, charge: Charge) -> Lines:
        """Return these lines and one that counts calls during an outage."""
        outage = Limit(reason="store_unavailable", label="outage", amount=charge.limit)
        demand, limits = self.demand, [*self.limits, outage]
        demand = Demand(
            demand.hits, [*demand.charges, charge], demand.hold_microseconds
        )
        period = (self.since, self.until)
        return Lines(self.facts, period, demand, limits, self.home, self.on_trial)


class Quotas:
    """The limits of one agent's policy, by tool."""

    def __init__(self, policy: AgentPolicy) -> None:
        self.agent_id = policy.agent_id
        self._rates = [
            (rate, ToolNames(policy.expand(rate.tools))) for rate in policy.rate_limits
        ]
        self._budgets = [
            (budget, ToolNames(policy.expand(budget.tools)))
            for budget in policy.budgets
        ]
        self._own = self._agent_accounts(policy)

    def hits(self, tool: str) -> list[tuple[RateHit, Limit]]:
        """Return the rates that calls of a tool count against."""
        return [self._hit(rate, tool) for rate, on in self._rates if tool in on]

    def accounts(self, tool: str) -> list[ChargeTemplate]:
        """Return the accounts that calls of a tool draw on."""
        budgets = [self._account(b, tool) for b, on in self._budgets if tool in on]
        return [*self._own, *budgets]

    def _agent_accounts(self, policy: AgentPolicy) -> list[ChargeTemplate]:
        accounts = []
        if policy.max_concurrency is not None:
            slots = Limit(
                reason="concurrency",
                label=f"{self.agent_id} max_concurrency",
                amount=policy.max_concurrency,
                unit="slots",
                window="open",
            )
            key = f"{self._prefix('agent', '')}slots"
            accounts.append(ChargeTemplate(key, slots, refund=True))
        if policy.max_calls_per_turn is not None:
            turn = Limit(
                reason="turn_limit",
                label=f"{self.agent_id} max_calls_per_turn",
                amount=policy.max_calls_per_turn,
                window="turn",
            )
            key = f"{self._prefix('agent', '')}turn"
            accounts.append(ChargeTemplate(key, turn))
        return accounts

    def _hit(self, rate: RateLimit, tool: str) -> tuple[RateHit, Limit]:
        at_once = rate.burst or rate.calls
        limit = Limit(
            reason="rate_limited",
            label=self._label(f"{rate.calls} calls/{rate.seconds} s", rate, tool),
            amount=at_once,
        )
        hit = RateHit(
            key=f"{self._prefix(rate.per, tool)}{limit_key(rate)}",
            limit=at_once,
            window=rate.window,
            interval=rate.interval,
            enforced=not rate.dry_run,
        )
        return hit, limit

    def _account(self, budget: Budget, tool: str) -> ChargeTemplate:
        limit = Limit(
            reason="budget_exceeded",
            label=self._label(f"{budget.unit}/{budget.window}", budget, tool),
            amount=budget.amount,
            unit=budget.unit,
            window=budget.window,
        )
        return ChargeTemplate(
            f"{self._prefix(budget.per, tool)}{limit_key(budget)}",
            limit,
            refund=budget.unsettled == "refund",
            enforced=not budget.dry_run,
        )

    def _prefix(self, per: Per, tool: str) -> str:
        """Return the prefix of keys of a scope; no id or name holds a `|`."""
        return {
            "global": "global|",
            "agent": agent_prefix(self.agent_id),
            "tool": f"tool|{tool}|",
            "agent_tool": f"{agent_prefix(self.agent_id)}tool|{tool}|",
        }[per]

    def _label(self, what: str, limit: RateLimit | Budget, tool: str) -> str:
        names = {"global": ["all"], "agent": [self.agent_id], "tool": [tool]}
        scope = names.get(limit.per, [self.agent_id, tool])
        chosen = [] if limit.tools == ("*",) else [f"({', '.join(limit.tools)})"]
        return " ".join([*scope, what, *chosen])


def agent_prefix(agent_id: str) -> str:
    """Return the prefix of the keys of an agent's own counters."""
    return f"agent|{agent_id}|"
