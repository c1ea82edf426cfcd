"""Copies of the standard library's modules, for our own code alone.

A program may replace `os.write` or all of `gc`, and still has an end and a report.
"""

from __future__ import annotations

import builtins
import sys
from types import ModuleType

_OURS = __name__.partition(".")[0]
# What programs set there is meant.
_SHARED = (builtins, sys)


def keep() -> None:
    """Have each module of a cell see copies of the modules that it imported."""
    copies: dict[ModuleType, ModuleType] = {}
    ours = [each for name, each in sys.modules.items() if name.startswith(_OURS)]
    for names in (module.__dict__ for module in ours):
        for name, value in list(names.items()):
            if _is_changeable(value):
                names[name] = copies.get(value) or _copy(value, copies)


def _is_changeable(value: object) -> bool:
    if type(value) is not ModuleType or value in _SHARED:
        return False
    return not value.__name__.startswith(_OURS)


def _copy(module: ModuleType, copies: dict[ModuleType, ModuleType]) -> ModuleType:
    copies[module] = copy = ModuleType(module.__name__)
    copy.__dict__.update(module.__dict__)
    return copy
