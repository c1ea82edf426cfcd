"""Checks that the names in policies are names of tools."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase

from toolcell.core import InvalidInputError, PolicyError
from toolcell.guard import AgentPolicy, Budget
from toolcell.guard.spi import RateLimit, Rule


def check_names(policies: Collection[AgentPolicy], tools: Collection[str]) -> None:
    """Check that each name or glob in policies matches a tool.

    Raises:
        PolicyError: Some match none; the message and `details["problems"]` say where.
    """
    problems = [
        {"field": field, "reason": _reason(selector, tools)}
        for policy in policies
        for field, selector in _selectors(policy)
        if not any(fnmatchcase(tool, selector) for tool in tools)
    ]
    if problems:
        raise PolicyError(
            "; ".join("{field}: {reason}".format(**problem) for problem in problems),
            hint="`toolcell tools list` has all; --offline does not look them up",
            details={"problems": problems},
        )


def check_agent(policies: Collection[AgentPolicy], agent_id: str) -> None:
    """Raise InvalidInputError if an agent has no policy."""
    if agent_id not in {policy.agent_id for policy in policies}:
        raise InvalidInputError(
            f"there is no policy of an agent {agent_id!r}",
            hint="`toolcell policy check` reads the policies; case counts",
        )


def _selectors(policy: AgentPolicy) -> Iterator[tuple[str, str]]:
    """Yield each selector of a policy with its field, but not `@groups` and `*`."""
    lists: dict[str, tuple[Rule | RateLimit | Budget, ...]] = {
        "allow": policy.allow,
        "ask": policy.ask,
        "deny": policy.deny,
        "rate_limits": policy.rate_limits,
        "budgets": policy.budgets,
    }
    for name, entries in lists.items():
        for index, entry in enumerate(entries):
            for selector in entry.tools:
                if not selector.startswith("@") and selector != "*":
                    yield f"{policy.agent_id}.{name}[{index}]", selector


def _reason(selector: str, tools: Collection[str]) -> str:
    near = get_close_matches(selector, tools, n=1)
    suggestion = f"; did you mean {near[0]!r}?" if near else ""
    return f"{selector!r} is no tool{suggestion}"
