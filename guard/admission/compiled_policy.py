"""Policies compiled for decisions: rules by tool name, limits as lines of a store."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

from toolcell.core import InvalidInputError, PolicyError, ToolCall
from toolcell.core.event_loop import read_large
from toolcell.core.text.canonical_json import canonical_digest

from ..approvals.types import is_same_name
from ..policy.conditions import Condition, judge_arguments
from ..policy.policy import AgentPolicy, Rule
from ..policy.selectors import TOOL_NAME, ToolNames
from ..values.calls import (
    NO_CAPS,
    NO_FACTS,
    CallFacts,
    Caps,
    GuardVerdict,
    Ruling,
    Tried,
)
from .quotas import LimitPlan, Quotas

_CONTAINS = re.compile(r"(?:\(\?[a-z]+\))?\.\*.*|.*\.\*\$?", re.DOTALL)
_FRAME = re.compile(r"\A(?:\(\?[a-z]+\))?\^?(?:\.\*\??)?|(?:\.\*\??)?\$?\Z")


def policy_remarks(policies: Iterable[AgentPolicy]) -> list[str]:
    """Return remarks on deny and ask rules that are easily stepped around."""
    return [
        f"{policy.agent_id}.{kind}[{index}].when.{path}: {remark}"
        for policy in policies
        for kind, rules in (("deny", policy.deny), ("ask", policy.ask))
        for index, rule in enumerate(rules)
        for path, condition in rule.when.items()
        for remark in _remarks(condition)
    ]


def _remarks(condition: Condition) -> Iterator[str]:
    if condition.matches is not None and _CONTAINS.fullmatch(condition.matches):
        inside = _FRAME.sub("", condition.matches)
        yield (
            f"the pattern {condition.matches!r} is for the whole text; "
            f"`contains = {inside!r}` finds it anywhere and in any case"
        )
    if condition.argv is not None:
        yield (
            "`argv` finds these exact commands alone, and the same done in another "
            "way passes; allow the commands that may run instead"
        )


_log = logging.getLogger("toolcell.guard")
_MAX_TOOL_POLICIES = 32_768
"""Tools of agents whose policy is kept compiled: ten each of 3,000, 2 to 4 KB each."""

_ANSWERS = {True: "met", False: "not met", None: "cannot be judged"}
_STRICTNESS: dict[GuardVerdict, int] = {"allow": 0, "ask": 1, "deny": 2}


class _CompiledRule:
    """A rule with its name and its tool names resolved."""

    def __init__(
        self, rule: Rule, name: str, policy: AgentPolicy, kind: GuardVerdict
    ) -> None:
        self.name = rule.name or name
        self.tools = ToolNames(policy.expand(rule.tools))
        self.tags = frozenset(rule.tags)
        self.versions = frozenset(rule.versions)
        self.via = rule.via
        self.when = rule.paths
        self._written = tuple(rule.when)
        self.kind = kind
        self.dry_run = rule.dry_run
        self.approvers = rule.approvers
        self.every_tool = not rule.tools
        self.depends_on_name_only = not (
            rule.tags or rule.versions or rule.via or rule.when
        )

    def judge(self, call: ToolCall, facts: CallFacts) -> bool | None:
        """Return whether a call meets the rule; None if that cannot be judged."""
        if not self.applies_to(facts):
            return False
        if not self.when:
            return True
        return judge_arguments(self.when, call.arguments, every=self.kind == "allow")

    def judged_parts(self, call: ToolCall, facts: CallFacts) -> str:
        """Return how each argument that it asks for was judged, for people."""
        if unfit := self._unfit(facts):
            return unfit
        every = self.kind == "allow"
        return "; ".join(
            f"{name}: {_ANSWERS[judge_arguments([part], call.arguments, every=every)]}"
            for name, part in zip(self._written, self.when, strict=True)
        )

    def judge_known(
        self, known: Mapping[str, Any], *, complete: bool
    ) -> tuple[bool | None, bool]:
        """Return what the known arguments say, and whether they are all it asks for."""
        judged = [
            each for each in self.when if complete or (each[0] and each[0][0] in known)
        ]
        answer = judge_arguments(judged, known, every=self.kind == "allow")
        return answer, len(judged) == len(self.when)

    def applies_to(self, facts: CallFacts) -> bool:
        """Return whether it applies to a tool that it names, whatever the arguments."""
        return not self._unfit(facts)

    def _unfit(self, facts: CallFacts) -> str:
        """Return why it does not apply to a tool that it names; empty: it does."""
        if self.versions and facts.version not in self.versions:
            return "another version"
        if self.via is not None and facts.via != self.via:
            return "another via"
        return "" if self.tags <= facts.tags else "other tags"


@dataclass(slots=True)
class RuleTrace:
    """Notes that are taken while the rules of a call are tried."""

    would_deny: list[str]
    tried: list[Tried] | None
    """Each rule that was tried; None if the caller does not want them."""


class CompiledPolicy:
    """One agent's policy, compiled."""

    def __init__(self, policy: AgentPolicy) -> None:
        self.policy = policy
        self.agent_id = policy.agent_id
        self.written = policy.model_dump(mode="json", exclude_defaults=True)
        self.quotas = Quotas(policy)
        by_kind: list[tuple[GuardVerdict, tuple[Rule, ...]]] = [
            ("deny", policy.deny),
            ("ask", policy.ask),
            ("allow", policy.allow),
        ]
        rules = [
            _CompiledRule(rule, f"{policy.agent_id}.{kind}[{index}]", policy, kind)
            for kind, written in by_kind
            for index, rule in enumerate(written)
        ]
        # The first rule that is met counts, and so the one that asks most people.
        rules.sort(key=lambda rule: (-_STRICTNESS[rule.kind], -rule.approvers))
        self._exact: dict[str, list[tuple[int, _CompiledRule]]] = {}
        self._others: list[tuple[int, _CompiledRule]] = []
        for place, rule in enumerate(rules):
            if rule.every_tool or rule.tools.has_globs:
                self._others.append((place, rule))
            else:
                for name in rule.tools.exact:
                    self._exact.setdefault(name, []).append((place, rule))

    def rules_for(self, tool: str) -> list[_CompiledRule]:
        """Return the rules that name a tool, in the order in which they are tried."""
        others = (
            (place, rule)
            for place, rule in self._others
            if rule.every_tool or tool in rule.tools
        )
        found = [*self._exact.get(tool, ()), *others]
        return [rule for _, rule in sorted(found, key=itemgetter(0))]

    def may_allow(
        self, tool: str, facts: CallFacts, known: Mapping[str, Any], *, complete: bool
    ) -> bool:
        """Return whether the rules could allow some call of a tool."""
        for rule in self.rules_for(tool):
            if rule.dry_run or not rule.applies_to(facts):
                continue
            answer, is_whole = rule.judge_known(known, complete=complete)
            if rule.kind == "deny":
                if is_whole and answer is not False:
                    return False
            elif answer is True or (answer is None and rule.kind == "ask"):
                return True
        return False


def _judge(
    rules: Sequence[_CompiledRule], call: ToolCall, facts: CallFacts, trace: RuleTrace
) -> Ruling:
    """Return the ruling of one policy's rules on a call of the tool that they name."""
    for rule in rules:
        answer = rule.judge(call, facts)
        # An argument that cannot be judged counts against the caller.
        met = answer is True or (answer is None and rule.kind != "allow")
        if trace.tried is not None:
            parts = rule.judged_parts(call, facts)
            trace.tried.append(Tried(rule=rule.name, met=met, detail=parts))
        if not met:
            continue
        if rule.dry_run:
            trace.would_deny.append(rule.name)
        elif rule.kind == "deny":
            return Ruling("deny", "denied", rule.name, f"a rule denies {call.name!r}")
        elif rule.kind == "ask":
            return _approval_ruling(call, rule.name, rule.approvers)
        else:
            return Ruling("allow", "allowed", rule.name)
    detail = f"no rule allows {call.name!r} with these arguments"
    return Ruling("deny", "not_allowed", None, detail)


class PolicySet:
    """The policies of all agents, compiled, as one immutable set.

    A guard replaces its set as a whole, so a call is judged by one version of all
    policies, which `version` names. An agent without a policy gets nothing: `of`
    returns an empty chain for it, and every call is refused as `no_policy`. With
    `parent`, the chain of an agent is its own policy and those of its ancestors; a
    call has to pass all of them.

    Args:
        policies: One policy for each agent.
        before: The set in force; its compiled policies are used again where nothing
            changed.

    Raises:
        PolicyError: One is no `AgentPolicy`; two are of one agent, or of agents whose
            ids differ only in case; or a parent is missing, or is its own descendant.
    """

    def __init__(
        self, policies: Iterable[AgentPolicy], before: PolicySet | None = None
    ) -> None:
        known = {} if before is None else before._by_agent
        self._by_agent: dict[str, CompiledPolicy] = {}
        seen: dict[str, str] = {}
        for policy in policies:
            if not isinstance(policy, AgentPolicy):
                raise PolicyError(
                    f"a policy is an AgentPolicy, not of type {type(policy).__name__}",
                    hint="write AgentPolicy(...), or AgentPolicy.model_validate(...)",
                )
            alike = seen.setdefault(policy.agent_id.casefold(), policy.agent_id)
            if policy.agent_id in self._by_agent:
                raise PolicyError(
                    f"two policies are of agent {policy.agent_id!r}",
                    hint="put their rules into one policy",
                )
            if alike != policy.agent_id:
                raise PolicyError(
                    f"agents {alike!r} and {policy.agent_id!r} differ only in case",
                    hint="rename one of them",
                )
            ready = known.get(policy.agent_id)
            if ready is None or ready.policy != policy:
                ready = CompiledPolicy(policy)
                for remark in policy_remarks([policy]):
                    _log.warning("%s", remark)
            self._by_agent[policy.agent_id] = ready
        written = [each.written for each in self._by_agent.values()]
        self.version = canonical_digest(written)[:12]
        self._chains = {agent: self._chain(agent) for agent in self._by_agent}
        self._tool_policies: OrderedDict[tuple[str | None, str], ToolPolicy] = (
            OrderedDict()
        )

    def _chain(self, agent_id: str) -> tuple[CompiledPolicy, ...]:
        chain: list[CompiledPolicy] = []
        name: str | None = agent_id
        while name is not None:
            found = self._by_agent.get(name)
            if found is None:
                raise PolicyError(
                    f"{chain[-1].agent_id!r} has no parent {name!r}",
                    hint="add a policy of that agent, or take `parent` out",
                )
            if found in chain:
                raise PolicyError(
                    f"{agent_id!r} is its own ancestor",
                    hint="take `parent` out of one policy of that circle",
                )
            chain.append(found)
            name = found.policy.parent
        return tuple(chain)

    def of(self, agent_id: str) -> tuple[CompiledPolicy, ...]:
        """Return the policies of an agent and its ancestors; empty if it has none."""
        return self._chains.get(agent_id, ())

    @property
    def written(self) -> list[AgentPolicy]:
        """The policies as they were written."""
        return [each.policy for each in self._by_agent.values()]

    def is_agent_name(self, name: str) -> bool:
        """Return whether a name is an agent's, or could be mistaken for one's."""
        return any(is_same_name(name, agent) for agent in self._by_agent)

    def check_reset(self, agent_id: str, by: str) -> None:
        """Check that a person resets the counters of an agent that is known.

        Raises:
            InvalidInputError: `by` is empty or an agent, or the agent has no policy.
        """
        if not by.strip() or self.is_agent_name(by):
            raise InvalidInputError(
                "a reset is an act of a person, whom 'by' names",
                hint="pass the person's name as `by`, not an agent's id",
            )
        if not self.of(agent_id):
            raise InvalidInputError(
                f"agent {agent_id!r} has no policy",
                hint="name an agent that has one; case counts",
            )

    def tool_policy(self, call: ToolCall) -> ToolPolicy:
        """Return the policy of an agent for one tool, compiled at its first call.

        To compile it for each call would more than double the time of a guarded call.
        32,768 are kept; a further one takes the place of the oldest.
        """
        kept, name = self._tool_policies, (call.agent_id, call.name)
        found = kept.get(name)
        if found is None:
            found = ToolPolicy(self.of(call.agent_id or ""), call)
            if found.chain:
                kept[name] = found
                if len(kept) > _MAX_TOOL_POLICIES:
                    kept.popitem(last=False)
        return found

    def may_allow(
        self,
        agent_id: str,
        tool: str,
        facts: CallFacts,
        known: Mapping[str, Any],
        *,
        complete: bool,
    ) -> bool:
        """Return whether a call of a tool could be allowed with some arguments."""
        chain = self.of(agent_id)
        fit = TOOL_NAME.fullmatch(tool) is not None and facts.via in facts.callers
        may = all(
            each.may_allow(tool, facts, known, complete=complete) for each in chain
        )
        return bool(chain) and fit and may


def _strictest_ruling(
    chain: Sequence[Sequence[_CompiledRule]],
    call: ToolCall,
    facts: CallFacts,
    *,
    explain: bool,
) -> Ruling:
    """Return the strictest ruling of an agent's policies, each given by its rules."""
    trace = RuleTrace([], [] if explain else None)
    ruling = Ruling("allow", "allowed")
    for rules in chain:
        own = _judge(rules, call, facts, trace)
        if ruling.rule is None or _strictness(own) > _strictness(ruling):
            ruling = own
        if own.verdict == "deny":
            break
    if facts.requires_approval and ruling.verdict == "allow":
        ruling = _approval_ruling(call, ruling.rule, 1)
    would_deny, tried = tuple(trace.would_deny), tuple(trace.tried or ())
    return replace(ruling, would_deny=would_deny, tried=tried)


def _strictness(ruling: Ruling) -> tuple[int, int]:
    return _STRICTNESS[ruling.verdict], ruling.approvers


def _approval_ruling(call: ToolCall, rule: str | None, approvers: int) -> Ruling:
    """Return the ruling on a call that people have to approve."""
    whose = (
        "a person's approval" if approvers == 1 else f"{approvers} people's approval"
    )
    detail = f"{call.name!r} needs {whose}"
    return Ruling("ask", "approval_required", rule, detail, approvers=approvers)


class ToolPolicy:
    """The part of a decision that is the same for every call of an agent to a tool.

    It holds the chain of policies, their rules that name the tool, the plan of their
    limits and the caps on loops. So a decision among a thousand globs costs what one
    among ten does (48 times that, if each were tried for each call). If all these rules
    look at the name only, it holds their ruling as well, and tries no rule.
    """

    def __init__(self, chain: Sequence[CompiledPolicy], call: ToolCall) -> None:
        self.chain = chain
        self.plan = LimitPlan([policy.quotas for policy in chain], call.name)
        caps = Caps(
            _smallest(each.policy.max_consecutive_calls for each in chain),
            _smallest(each.policy.max_identical_results for each in chain),
        )
        self.caps = NO_CAPS if caps == NO_CAPS else caps
        self.ruling = self._static_refusal(call)
        """The ruling on every call, if the rules look at nothing but the name."""

        self.is_static = self.ruling is not None
        """True if the ruling stands before any rule is tried."""

        self._rules: list[list[_CompiledRule]] = []
        if self.is_static:
            return
        self._rules = [each.rules_for(call.name) for each in chain]
        if all(rule.depends_on_name_only for rules in self._rules for rule in rules):
            self.ruling = _strictest_ruling(self._rules, call, NO_FACTS, explain=False)

    def _static_refusal(self, call: ToolCall) -> Ruling | None:
        if call.agent_id is None:
            return Ruling("deny", "no_agent", None, "the call names no agent")
        if not self.chain:
            detail = f"agent {call.agent_id[:128]!r} has no policy"
            return Ruling("deny", "no_policy", None, detail)
        if not TOOL_NAME.fullmatch(call.name):
            detail = "a tool's name is 1 to 128 of A-Z a-z 0-9 _ . : / -"
            return Ruling("deny", "bad_call", None, detail)
        return None

    def judge(
        self, call: ToolCall, facts: CallFacts, *, explain: bool = False
    ) -> Ruling:
        """Return the ruling on a call."""
        if call.malformed is not None:
            return Ruling("deny", "bad_call", None, "its arguments are no JSON object")
        if facts.via not in facts.callers and not self.is_static:
            return _wrong_way(call, facts)
        if self.ruling is not None:
            asks = facts.requires_approval and self.ruling.verdict == "allow"
            if self.is_static or not (explain or asks):
                return self.ruling
        return _strictest_ruling(self._rules, call, facts, explain=explain)

    async def ruling_on(
        self, call: ToolCall, facts: CallFacts, *, explain: bool = False
    ) -> Ruling:
        """Return the ruling on a call; a large one is read beside the event loop."""
        if self.ruling is not None:
            return self.judge(call, facts, explain=explain)
        judge = partial(self.judge, call, facts, explain=explain)
        return await read_large(call.agent_id or "", call.arguments, judge)


def _wrong_way(call: ToolCall, facts: CallFacts) -> Ruling:
    who = "a program's code" if facts.via == "model" else "the model itself"
    return Ruling("deny", "denied", None, f"only {who} may call {call.name!r}")


def _smallest(caps: Iterable[int | None]) -> int | None:
    return min((cap for cap in caps if cap is not None), default=None)
