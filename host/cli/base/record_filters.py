"""Options that choose records."""

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
Agent = Annotated[str | None, typer.Option(help="Only those of an agent.")]
Tool = Annotated[str | None, typer.Option(help="Only those of a tool.")]
Reason = Annotated[str | None, typer.Option(help="Only those refused for a reason.")]
Text = Annotated[str | None, typer.Option(help="Only those with all of these words.")]
Lines = Annotated[int, typer.Option(min=1, max=100_000, help="The number of records.")]
