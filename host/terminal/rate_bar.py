"""A bar on a terminal for work of many parts, with its rate and the time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def rate_bar(total: int, done: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show how many parts are done, on standard error if that is a terminal.

    Yields a function that takes the number of parts that are done now.

    Args:
        total: All parts.
        done: Parts that were done before; they do not count in the rate.
        quiet: Shows nothing.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed or 0:.0f}/s")

    columns = (BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield lambda now: bar.update(task, completed=now)
