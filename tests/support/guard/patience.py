"""Waits for other processes, long enough for a machine that stands still at times."""

from __future__ import annotations

from .worker import PATIENCE

WAITS = (
    "toolcell.core.storage.sqlite.OPEN_SECONDS",
    "toolcell.guard.approvals.store.BUSY_SECONDS",
    "toolcell.guard.audit.file.LOCK_SECONDS",
)
"""How long files of the guard wait; who holds one may be stopped meanwhile."""

PATIENT = "".join(
    f"import {name.rpartition('.')[0]}\n{name} = {PATIENCE}\n" for name in WAITS
)
"""Begins a script whose files wait as long as those of the tests."""
