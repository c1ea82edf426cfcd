"""Pseudo-terminals: each cell has a file system of its own for them, with few."""

from __future__ import annotations

FOLDER = "/dev/pts"
OPTIONS = "newinstance,max=16,mode=0620,ptmxmode=0666"
"""How that is mounted; without `max` it has as many as the kernel has left for all."""
