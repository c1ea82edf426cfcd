"""The tool `get_today_date`."""

from __future__ import annotations

from datetime import timedelta

from ..definition.context import ToolContext
from ..definition.tool import tool


# Not declared idempotent: after midnight the answer is another one.
@tool
async def get_today_date(context: ToolContext) -> dict[str, object]:
    """Return today's date, its weekday, and the dates of the days that follow."""
    today = context.now().date()

    def later(days: int) -> str:
        return (today + timedelta(days=days)).isoformat()

    coming = [today + timedelta(days=days) for days in range(1, 8)]
    return {
        "today": today.isoformat(),
        "weekday": _WEEKDAYS[today.weekday()].capitalize(),
        "year": today.year,
        "tomorrow": later(1),
        "day_after_tomorrow": later(2),
        "next_7_days_by_weekday": {
            _WEEKDAYS[day.weekday()]: day.isoformat() for day in coming
        },
        "one_week_from_now": later(7),
        "two_weeks_from_now": later(14),
    }


# In English whatever the locale of the host says.
_WEEKDAYS = (
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
)
