"""The parts of pages that lists with filters share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar, get_args

from starlette.responses import Response

from toolcell.guard.spi import Reason

from ...http.streams import TAKE_SECONDS, Streamed
from ...operator.exports import FORMS
from ...operator.filters import FAILED, NAMES, STATUSES, read_filters
from ..web.visit import ActionRefusedError, Visit

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
    tools = [tool.name for tool in visit.sources.registry.snapshot()]
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


def exported(
    visit: Visit,
    name: str,
    export: Callable[[Mapping[str, Any], str], AsyncGenerator[bytes, None]],
) -> Response:
    """Answer with all that fits the filters of a list, as a file.

    Args:
        visit: The request; its query has the filters, and `form`.
        name: The name of the file, without its suffix.
        export: Yields what fits, in a form.

    Raises:
        ActionRefusedError: There is no such form.
        InvalidInputError: A filter cannot be read.
    """
    form = visit.query("form", "jsonl")
    if form not in FORMS:
        raise ActionRefusedError(404, "there is no such form", hint="jsonl or csv")
    given = {each: visit.query(each) for each in NAMES}
    asked = read_filters(given, datetime.now(UTC))
    asked.check()
    return Streamed(
        export(asked.wanted, form),
        FORMS[form],
        headers={"Content-Disposition": f"attachment; filename={name}.{form}"},
        take_seconds=TAKE_SECONDS,
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
