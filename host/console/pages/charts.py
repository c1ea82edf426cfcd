"""Use by hour as charts: their bars, axes and dates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from toolcell.tools.spi import UsageHour

from ...charts.bars import Bar, axis_top

HOURS = 48
"""Hours that are drawn."""

TICK_HOURS = 12
"""Hours between two dates below a chart."""

HOUR = 3_600

_AMOUNTS = (
    ("Calls", "calls", "calls", 1),
    ("Refused", "calls", "denied", 1),
    ("CPU", "s", "cpu_ms", 1_000),
    ("Money", "USD", "usd", 1),
)
"""Title, unit, name in `UsageHour`, and what of it makes one unit."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One amount over the hours up to now."""

    title: str
    total: str
    """The sum with its unit."""

    highest: str
    """The largest amount and its hour; empty: there is none."""

    scale: tuple[str, str, str]
    """The numbers at the axis: its top, its middle, and 0."""

    dates: tuple[datetime, ...]
    """The begin of each `TICK_HOURS`."""

    bars: tuple[Bar, ...]


def charts(usage: Iterable[UsageHour], now: float) -> list[Chart]:
    """Return the charts of some agents.

    Args:
        usage: Their use by hour, in any order.
        now: The time, in seconds since 1970 (UTC).
    """
    found = list(usage)
    hours = [int(now // HOUR - back) * HOUR for back in reversed(range(HOURS))]
    made = []
    for title, unit, name, of_one in _AMOUNTS:
        sums = dict.fromkeys(hours, 0.0)
        for used in found:
            if used.hour in sums:
                sums[used.hour] += getattr(used, name) / of_one
        made.append(_chart(title, unit, sums))
    return made


def _chart(title: str, unit: str, sums: dict[int, float]) -> Chart:
    top = axis_top(max(sums.values()), 2 if unit == "calls" else 0.01)
    busiest = max(sums, key=sums.__getitem__)
    labels = {
        hour: f"{_time(hour):%a %d %b, %H:00}: {_number(amount)} {unit}"
        for hour, amount in sums.items()
    }
    return Chart(
        title=title,
        total=f"{_number(sum(sums.values()))} {unit}",
        highest=labels[busiest] if sums[busiest] else "",
        scale=(_number(top), _number(top / 2), "0"),
        dates=tuple(map(_time, [*sums][::TICK_HOURS])),
        bars=tuple(
            Bar(at, amount / top, labels[hour])
            for at, (hour, amount) in enumerate(sums.items())
            if amount > 0
        ),
    )


def _number(amount: float) -> str:
    """Return a number with at most three digits after its point."""
    return f"{amount:,.3f}".rstrip("0").rstrip(".")


def _time(hour: int) -> datetime:
    return datetime.fromtimestamp(hour, UTC)
