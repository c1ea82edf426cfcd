"""Shows the progress of long work: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from toolcell.core.text.printable import escaped_line

from .output import print_notice


class ShowStep(Protocol):
    """Shows one step of the work."""

    def __call__(self, done: int, total: int | None, text: str) -> None: ...


@contextmanager
def progress(what: str, *, quiet: bool) -> Iterator[ShowStep]:
    """Yield a function that shows each step on standard error.

    Args:
        what: A name of the work, for the bar.
        quiet: True shows nothing.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=sys.stderr, quiet=quiet)
    is_terminal = console.is_terminal
    with Progress(console=console, disable=not is_terminal, transient=True) as bar:
        task = bar.add_task(_markup(what), total=None)

        def on_step(done: int, total: int | None, text: str) -> None:
            if is_terminal:
                bar.update(task, total=total, completed=done, description=_markup(text))
            elif not quiet:
                print_notice(text, as_json=False)

        yield on_step


def _markup(text: str) -> str:
    """Return markup that rich shows as this text, and reads nothing into."""
    from rich.markup import escape

    return escape(escaped_line(text))


@contextmanager
def rate_bar(
    total: int, done: int, as_json: bool, lines: bool
) -> Iterator[Callable[[int], None]]:
    """Show how many parts are done, on standard error if that is a terminal.

    Yields a function that takes the number of parts that are done now.

    Args:
        total: All parts.
        done: Parts that were done before; they do not count in the rate.
        as_json: True shows no bar.
        lines: True prints a line for each hundredth instead, wherever that goes.
    """
    if lines:
        yield partial(_print_hundredth, total, as_json, [done * 100 // max(total, 1)])
        return
    if as_json or not sys.stderr.isatty():
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


def _print_hundredth(total: int, as_json: bool, shown: list[int], now: int) -> None:
    """Print how many parts are done, if that is a hundredth more than was shown."""
    if (hundredth := now * 100 // max(total, 1)) > shown[0]:
        shown[0] = hundredth
        print_notice(f"{now} of {total} have a result", as_json=as_json)
