"""Faces of rooms that import a module when one of its names is asked for (PEP 562).

A command loads only what it uses: pydantic's models alone take as long as Python itself
several times over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_face(face: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a face.

    Args:
        face: The `__name__` of the package, or of its `spi`.
        homes: The names of each module, by the module's relative name.
    """
    package = sys.modules[face].__package__
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name], package), name)
        setattr(sys.modules[face], name, value)
        return value

    return get
