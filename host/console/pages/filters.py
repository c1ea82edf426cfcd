"""The parts of pages that lists with filters share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar, get_args

from toolcell.guard.spi import Reason

from ...operator.filters import FAILED, STATUSES
from ..web.visit import Visit

_Item = TypeVar("_Item")


class Choices(NamedTuple):
    """The values of filters that can be chosen; each has the one that was given."""

    agents: list[str]
    tools: list[str]
    statuses: list[str]
    reasons: list[str]
    times: list[tuple[str, str]]
    """Values and words."""


_TIMES = (
    ("1h", "the last hour"),
    ("today", "today"),
    ("yesterday", "yesterday and today"),
    ("7d", "the last 7 days"),
)


def filter_choices(visit: Visit, given: Mapping[str, str]) -> Choices:
    """Return what can be chosen: what exists, and what was given."""
    tools = [each.name for each in visit.sources.registry.snapshot()]
    times = dict(_TIMES)
    if given["since"] and given["since"] not in times:
        times[given["since"]] = f"since {given['since']}"
    return Choices(
        _with(visit.sources.guard.agents, given["agent"]),
        _with(tools, given["tool"]),
        _with((FAILED, *STATUSES), given["status"]),
        _with(get_args(Reason)[1:], given["reason"]),
        list(times.items()),
    )


def by_day(
    items: Iterable[tuple[datetime | None, _Item]],
) -> list[tuple[str, list[_Item]]]:
    """Return items in groups of one day (UTC) each, in their order.

    Those without a time stay with the ones before.
    """
    days: list[tuple[str, list[_Item]]] = []
    for time, item in items:
        last = days[-1][0] if days else "without a time"
        day = last if time is None else f"{time.astimezone(UTC):%A, %Y-%m-%d}"
        if not days or days[-1][0] != day:
            days.append((day, []))
        days[-1][1].append(item)
    return days


def _with(known: Iterable[str], given: str) -> list[str]:
    found = list(known)
    return found if not given or given in found else [given, *found]
