"""A user without rights, and an interpreter that every user may read."""

from __future__ import annotations

ORDINARY_USER = 65_534


SYSTEM_PYTHON = "/usr/bin/python3"
