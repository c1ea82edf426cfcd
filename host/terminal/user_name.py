"""The name of the user who runs this process."""

from __future__ import annotations

import getpass
import os


def user_name() -> str:
    """Return the name, or `uid:1234` of a user without a name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid:{os.getuid()}"
