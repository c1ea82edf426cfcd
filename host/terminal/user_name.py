"""The name of who runs this process."""

from __future__ import annotations

import getpass
import os


def user_name() -> str:
    """Return it, or `uid:1234` of a user without a name, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid:{os.getuid()}"
