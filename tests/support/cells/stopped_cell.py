"""Signals to all of a cell, as from outside of it."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..process_tree import below


def signal_cell(session: Any, number: signal.Signals) -> None:
    """Send a signal to the first process of a session's cell, and to all below it."""
    handle = session._shared.cell._process._handle
    facts = Path(f"/proc/self/fdinfo/{handle}").read_text()
    [first] = map(int, re.findall(r"^Pid:\s+(\d+)$", facts, re.M))
    others = below(first)
    os.kill(first, number)
    for pid in others:
        # Those below end with the first one.
        with suppress(ProcessLookupError):
            os.kill(pid, number)
