"""Names of holds: never the same twice, in any process."""

from __future__ import annotations

import itertools
import os
import secrets

_process = secrets.token_hex(8)
_numbers = itertools.count()


def _renew() -> None:
    global _process
    _process = secrets.token_hex(8)


os.register_at_fork(after_in_child=_renew)


def new_hold_id() -> str:
    """Return a name that no other hold has."""
    return f"{_process}-{next(_numbers)}"
