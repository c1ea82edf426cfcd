"""The state of a limit at a moment: its maximum, what is used, and when it resets."""

from __future__ import annotations

from typing import NamedTuple

Shown = int | str
"""An amount as callers write it: of usd decimal text, else a whole number."""


class LimitState(NamedTuple):
    """One limit of an agent for calls of a tool, at a moment."""

    label: str
    """Its name in decisions."""

    unit: str
    """Of its amounts: `calls`, `slots` for calls at once, or a unit of cost."""

    window: str
    """The period that it counts in: `hour`, `day`, `month`, `run`, `turn`, `total`,
    `open` for calls at once, or `rate`."""

    maximum: Shown
    used: Shown
    held: Shown
    """The amount that open calls have reserved."""

    left: Shown
    resets_at: float | None
    """Seconds since 1970 (UTC) at which the period ends, and of a full rate at which
    the next call may come. None: time alone changes nothing, or there is room."""

    enforced: bool
    """False if it is on trial (`dry_run`), and refuses nothing."""
