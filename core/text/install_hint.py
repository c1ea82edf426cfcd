"""The hint of errors about an optional library that is missing."""

from __future__ import annotations


def install_hint(extra: str) -> str:
    """Return how to install toolcell with one of its extras, such as `mcp`.

    The way leads through a clone, for no package index has this project.
    """
    return f"in a clone of toolcell: pip install '.[{extra}]'"
