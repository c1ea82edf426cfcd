"""Pseudo-terminals: each cell has a file system of its own for them, with few."""

from __future__ import annotations

FOLDER = "/dev/pts"
OPTIONS = "newinstance,max=16,mode=0620,ptmxmode=0666"
"""Mount options of devpts. Without `max` a cell could use up those of the machine."""
