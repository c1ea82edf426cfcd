"""The names of the user who runs this process."""

from __future__ import annotations

import getpass
import os
import pwd


def user_name() -> str:
    """Return the name, or `uid:1234` of a user without a name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid:{os.getuid()}"


def account_name() -> str:
    """Return the name of the user's account, whatever the environment says.

    An account without a name is `uid:1234`.
    """
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid:{os.getuid()}"
