"""Pseudo-terminals: each cell has its own file system for them, with few."""

from __future__ import annotations

FOLDER = "/dev/pts"
OPTIONS = "newinstance,mode=0620,ptmxmode=0666"
"""Mount options of devpts."""

MOST = "max=16"
"""One more, without which a cell could use up the terminals of the machine."""
