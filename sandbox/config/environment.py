"""The environment of every program."""

from __future__ import annotations

from ..cell.wire import aliases
from ..cell.wire.contract import USER_NAME

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PATH = f"{aliases.FOLDER}:{_SYSTEM_PATH}:/node/bin"


def cell_environment(extra: dict[str, str], workdir: str) -> dict[str, str]:
    """Return the whole environment of a program."""
    base = {
        "PATH": _PATH,
        "HOME": workdir,
        "USER": USER_NAME,
        "LOGNAME": USER_NAME,
        "TMPDIR": "/tmp",  # noqa: S108 - the cell's own
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "Agg",
    }
    return {**base, **extra}
