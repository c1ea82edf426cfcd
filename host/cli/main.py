"""The `toolcell` command."""

from __future__ import annotations

import atexit
import contextlib
import gc
import sys

from ..terminal.signals import Ended, end_on_signals
from ..terminal.streams import OutputError, settle_streams

_NEW_OBJECTS = 100_000
"""After so many Python looks for garbage, instead of after 700."""

_USUAL = gc.get_threshold()


def main() -> None:
    """Run the command line; errors and signals become one line and an exit code."""
    end_on_signals()
    settle_streams()
    # Nearly all that a short command makes is code, which stays to the end. To look
    # for garbage in it, meanwhile and at exit, takes a fifth of the command's time.
    gc.set_threshold(_NEW_OBJECTS)
    atexit.register(gc.freeze)
    try:
        from .commands import run_command

        run_command()
    except Ended as ended:
        with contextlib.suppress(OutputError):
            ended.tell(as_json="--json" in sys.argv[1:])
        raise


def stay() -> None:
    """Look for garbage as usual again: this command stays, and so would the garbage."""
    gc.set_threshold(*_USUAL)
