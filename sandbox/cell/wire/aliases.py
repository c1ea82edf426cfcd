"""The names that programs expect to find: their interpreter's and their machine's."""

from __future__ import annotations

import os
import sys

FOLDER = "/python/bin"
"""The first folder of a program's PATH."""

HOSTS = "127.0.0.1 localhost cell\n::1 localhost ip6-localhost ip6-loopback cell\n"
"""The text of /etc/hosts in a cell, whose host name is `cell`."""

_EXEC = '#!/bin/sh\nexec "%s" %s"$@"\n'


def make(folder: str) -> None:
    """Make `python`, `python3`, `python3.N` and `pip` in a new folder.

    `pip` is the interpreter's own. Where the interpreter has none, the command says so,
    and the pip of another Python is not found in its place.
    """
    os.makedirs(folder, mode=0o755, exist_ok=True)
    python = sys.executable
    for name in ("python", "python3", "python%d.%d" % sys.version_info[:2]):
        if _is_virtual(python):
            # It finds its packages by the path that it is called with.
            _write(os.path.join(folder, name), _EXEC % (python, ""))
        else:
            os.symlink(python, os.path.join(folder, name))
    for name in ("pip", "pip3"):
        _write(os.path.join(folder, name), _EXEC % (python, "-m pip "))


def _is_virtual(python: str) -> bool:
    home = os.path.dirname(os.path.dirname(python))
    return os.path.exists(os.path.join(home, "pyvenv.cfg"))


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
    with open(fd, "w", encoding="utf-8") as file:
        os.fchmod(fd, 0o755)
        file.write(text)
