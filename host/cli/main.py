"""The `toolcell` command."""

from __future__ import annotations

import contextlib
import sys

from ..terminal.interpreter import put_off_collection, skip_teardown
from ..terminal.signals import SignalExit, end_on_signals
from ..terminal.streams import OutputError, ensure_standard_streams
from .base.head_start import head_start


def entry_point() -> None:
    """Run the command line in its own process, and end that process."""
    with skip_teardown():
        main()


def main() -> None:
    """Run the command line; errors and signals become one line and an exit code."""
    end_on_signals()
    ensure_standard_streams()
    put_off_collection()
    try:
        with head_start(sys.argv[1:]):
            from .commands import run_command

            run_command()
    except SignalExit as ended:
        with contextlib.suppress(OutputError):
            ended.print_error(as_json="--json" in sys.argv[1:])
        raise
