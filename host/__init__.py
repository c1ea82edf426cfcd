"""The doors to toolcell: the command line."""

from .cli import main

__all__ = ["main"]
