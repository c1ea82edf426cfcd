"""Numbers that a cell sends, which may be any that JSON can write."""

from __future__ import annotations

from ..cell.wire.frames import FrameError

MAX_WAIT_STATUS = 0xFFFF
MAX_EXIT_CODE = 0xFF
MAX_PID = 2**31 - 1
_MAX_WHOLE = 2**63 - 1
_MAX_MILLISECONDS = 2**53


def whole(value: object, most: int = _MAX_WHOLE) -> int:
    """Return a whole number from 0 to `most`. Raises FrameError if it is another."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise FrameError(f"not a whole number from 0 to {most}")
    return value


def milliseconds(value: object) -> float:
    """Return a duration. Raises FrameError if it is another value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FrameError("not a duration")
    if not 0 <= value <= _MAX_MILLISECONDS:
        raise FrameError("a duration that is out of range")
    return float(value)
