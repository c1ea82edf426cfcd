"""Time that never runs back."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Returns seconds since 1970 (UTC)."""

MICROSECONDS = 1_000_000
"""Microseconds of a second."""

# Counts suspended time too, where the system has such a clock.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_START = time.time() - time.clock_gettime(_STEADY)


def steady_time() -> float:
    """Return seconds since 1970 (UTC): the time at the start of the process, and since.

    Steps of the system's clock during the life of the process have no effect.
    """
    return _START + time.clock_gettime(_STEADY)


def microseconds(seconds: float) -> int:
    """Return whole microseconds, as stores count."""
    return round(seconds * MICROSECONDS)
