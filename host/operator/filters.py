"""Filters of records and of the audit log: one meaning for every way to ask."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from toolcell.core import InvalidInputError, ToolStatus
from toolcell.sandbox import Status
from toolcell.tools.spi import has_words, words_in

STATUSES: tuple[str, ...] = tuple(
    dict.fromkeys((*get_args(ToolStatus), *get_args(Status)))
)
"""The ends of calls and of programs that can be asked for."""

FAILED = "failed"
"""Asks for every end but `ok` and `denied`."""

NAMES = ("agent", "tool", "status", "reason", "text", "since", "until", "call")
"""The filters, as every door names them."""

_AGO = re.compile(r"(\d{1,5})([hd])")


@dataclass(frozen=True, slots=True)
class ReadFilters:
    """Filters that were read."""

    wanted: Mapping[str, Any]
    """Arguments of `Records.page`."""

    problems: Mapping[str, str]
    """The filters that cannot be read, and why; the others stand."""

    def check(self) -> None:
        """Check that all could be read.

        Raises:
            InvalidInputError: One could not.
        """
        for name, problem in self.problems.items():
            raise InvalidInputError(
                f"{name}: {problem}", hint="correct or leave it out"
            )


def read_filters(given: Mapping[str, str | None], now: datetime) -> ReadFilters:
    """Read filters; what is empty asks for nothing.

    Args:
        given: The texts, by the names of filters. Other names are no filters.
        now: The time; an aware datetime.
    """
    readers: dict[str, tuple[str, Callable[[str], Any]]] = {
        "agent": ("agent_id", str),
        "tool": ("tool_name", str),
        "status": ("status", read_status),
        "reason": ("reason", str),
        "text": ("text", str),
        "call": ("call_id", str),
        "since": ("since", lambda text: read_time(text, now)),
        "until": ("until", lambda text: read_time(text, now)),
    }
    wanted, problems = {}, {}
    for name, (argument, read) in readers.items():
        text = given.get(name)
        if not text:
            continue
        try:
            wanted[argument] = read(text)
        except InvalidInputError as error:
            problems[name] = f"{error.message}: {error.hint}"
    return ReadFilters(wanted, problems)


def fits_audit(wanted: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    """Tell whether a record of the audit log fits filters, but for its time.

    The end of a decision is `denied`, or none yet.
    """
    ends = wanted.get("status")
    ends = (ends,) if isinstance(ends, str) else ends
    refused = "denied" if record.get("verdict") == "deny" else None
    end = record.get("status") or refused
    exact = {"agent_id": "agent_id", "tool_name": "tool", "reason": "reason"}
    exact |= {"call_id": "call_id"}
    return (
        all(
            wanted[name] == record.get(member)
            for name, member in exact.items()
            if name in wanted
        )
        and (ends is None or end in ends)
        and ("text" not in wanted or has_words(words_in(record), wanted["text"]))
    )


def read_status(text: str) -> str | tuple[str, ...]:
    """Return the status, or the statuses, that a text asks for.

    Raises:
        InvalidInputError: It names none.
    """
    if text == FAILED:
        return tuple(status for status in STATUSES if status not in ("ok", "denied"))
    if text not in STATUSES:
        raise InvalidInputError(
            f"{text!r} is no status", hint=f"{FAILED}, {', '.join(STATUSES)}"
        )
    return text


def read_time(text: str, now: datetime) -> datetime:
    """Return a time in UTC; one without a zone is in UTC.

    Args:
        text: A date, a time, `today`, `yesterday`, or how long ago, such as `2h`, `7d`.
        now: The time; an aware datetime.

    Raises:
        InvalidInputError: It is not valid.
    """
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    days = {"today": 0, "yesterday": 1}
    if text in days:
        return today - timedelta(days=days[text])
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            hours = int(ago[1]) * (24 if ago[2] == "d" else 1)
            return now.astimezone(UTC) - timedelta(hours=hours)
        named = datetime.fromisoformat(text)
        zoned = named.replace(tzinfo=UTC) if named.tzinfo is None else named
        return zoned.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInputError(
            f"{text!r} is no time",
            hint="write it as 2026-11-26, 2026-11-26T08:00, yesterday, or 2h for ago",
        ) from None
