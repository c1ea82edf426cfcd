"""Names of holds, unique among all processes."""

from __future__ import annotations

import itertools
import secrets

from toolcell.core.storage.forks import in_each_child

_process = secrets.token_hex(8)
new_number = itertools.count().__next__
"""Returns a number that no other hold of this process has."""


def _renew() -> None:
    global _process
    _process = secrets.token_hex(8)


in_each_child(_renew)


def hold_id(number: int) -> str:
    """Return a name that no other hold has, from its number in this process."""
    return f"{_process}-{number}"
