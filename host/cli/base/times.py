"""Times in options of commands."""

from __future__ import annotations

from typing import Annotated

import typer

Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only those of then or later: 2026-11-26T08:00 (UTC), yesterday, or 2h.",
    ),
]
Until = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only those of before then.")
]
