"""Time since the machine was started, which nobody can set."""

from __future__ import annotations

import time
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def uptime() -> float:
    """Return the seconds since the machine was started, its sleep included on Linux."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def boot_id() -> str:
    """Return a name that differs after each start of the machine; empty if unknown."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
