"""Remarks on rules that are valid, and probably mean something else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from .conditions import Condition
from .policy import AgentPolicy

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
