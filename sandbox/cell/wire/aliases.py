"""The programs that each cell has: its interpreter's names, and `tools`."""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = "/python/bin"
"""The first folder of a program's PATH."""

HOSTS = "127.0.0.1 localhost cell\n::1 localhost ip6-localhost ip6-loopback cell\n"
"""The text of /etc/hosts in a cell, whose host name is `cell`."""

_TOOLS = ".tools.pyc"
_EXEC_TOOLS = '#!/bin/sh\nexec "%s" -I -S -X utf8 "${0%%/*}/%s" "$@"\n'
_EXEC = '#!/bin/sh\nexec "%s" %s"$@"\n'


def make(folder: str) -> None:
    """Make `python`, `python3`, `python3.N`, `pip` and `tools` in a new folder.

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
    _write(os.path.join(folder, "tools"), _EXEC_TOOLS % (python, _TOOLS))
    with open(os.path.join(folder, _TOOLS), "wb") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(_compiled_tools())


def _compiled_tools() -> bytes:
    """Return the program `tools` as a file of compiled Python: modules have no file."""
    package = __name__.rpartition(".wire.")[0]
    loader: Any = __spec__.loader
    code = loader.get_code(package + ".program.tools_command")
    # No flags, no time and no size: nobody compares them.
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


def _is_virtual(python: str) -> bool:
    home = os.path.dirname(os.path.dirname(python))
    return os.path.exists(os.path.join(home, "pyvenv.cfg"))


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
    with open(fd, "w", encoding="utf-8") as file:
        os.fchmod(fd, 0o755)
        file.write(text)
