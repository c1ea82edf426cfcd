"""The error of walls that a kernel does not give."""

from __future__ import annotations


class WallsRefusedError(OSError):
    """The kernel lacks a part of these walls; nothing was changed."""
