"""Policies written with the field names of other guards, with safe meanings."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any


def translate_aliases(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a policy with the field names of other guards translated.

    Raises:
        ValueError: A value has no safe meaning.
    """
    ours = dict(values)
    for alias, field in _LISTS.items():
        if alias in ours:
            _extend(ours, field, _names(alias, ours.pop(alias)))
    for alias, field in _CAPS.items():
        if alias in ours:
            if field in ours:
                raise ValueError(f"{alias} and {field} are one limit; keep one")
            ours[field] = ours.pop(alias)
    if domains := _names("denied_domains", ours.pop("denied_domains", [])):
        when = {"*": {"mentions_host": domains}}
        rule = {"tools": ["*"], "when": when, "name": "denied_domains"}
        _extend(ours, "deny", [rule])
    if "max_calls_per_minute" in ours:
        rate = {"calls": ours.pop("max_calls_per_minute"), "seconds": 60}
        _extend(ours, "rate_limits", [rate])
    if (cost := ours.pop("max_cost_usd", None)) is not None:
        _extend(ours, "budgets", [{"unit": "usd", "limit": _decimal(cost)}])
    return ours


_LISTS = {
    "allowed_tools": "allow",
    "denied_tools": "deny",
    "require_human_approval_for": "ask",
}
_CAPS = {
    "max_tool_calls_per_turn": "max_calls_per_turn",
    "max_consecutive_tool_calls": "max_consecutive_calls",
}


def _names(alias: str, value: Any) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise ValueError(f"{alias} must be a list; every tool is written ['*']")
    return list(value)


def _extend(values: dict[str, Any], field: str, more: list[Any]) -> None:
    given = values.get(field, ())
    if not isinstance(given, list | tuple):
        raise ValueError(f"{field} must be a list")
    values[field] = [*given, *more]


def _decimal(cost: Any) -> Any:
    """Return money as decimal text; a float by its shortest notation."""
    if isinstance(cost, float):
        if not math.isfinite(cost):
            raise ValueError("max_cost_usd must be finite")
        return f"{Decimal(repr(cost)):f}"
    return cost


_TEXTS = {"type": "array", "items": {"type": "string"}}
_COUNT = {"type": "integer", "minimum": 1}
ALIAS_SCHEMA: dict[str, Any] = {
    **dict.fromkeys((*_LISTS, "denied_domains"), _TEXTS),
    **dict.fromkeys((*_CAPS, "max_calls_per_minute"), _COUNT),
    "max_cost_usd": {"type": ["number", "string"]},
}
"""The JSON Schema of each alias."""
