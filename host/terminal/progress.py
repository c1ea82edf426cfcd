"""Shows the progress of long work: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
