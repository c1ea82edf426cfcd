"""Loads what only programs need, when they ask for it: commands start without it."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

_HOME = {"Host": ".runtime.host", "HostConfig": ".config.host_config"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'toolcell.host' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name], __package__), name)
    setattr(sys.modules[__package__ or ""], name, value)
    return value
