"""Times in options of commands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from toolcell.core import InvalidInputError

Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Only those of then or later, as 2026-11-26T08:00 UTC."
    ),
]
Until = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only those of before then.")
]


def read_time(text: str) -> datetime:
    """Return a time in UTC; one without a zone is in UTC.

    Raises:
        InvalidInputError: It is none.
    """
    try:
        named = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInputError(
            f"{text!r} is no time", hint="write it as 2026-11-26 or 2026-11-26T08:00"
        ) from None
    return named.replace(tzinfo=UTC) if named.tzinfo is None else named.astimezone(UTC)
