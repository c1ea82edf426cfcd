"""The environment of every program."""

from __future__ import annotations

from ..cell.wire import aliases
from ..cell.wire.contract import USER_NAME

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def cell_environment(
    extra: dict[str, str], workdir: str, image_path: str = ""
) -> dict[str, str]:
    """Return the whole environment of a program.

    Args:
        extra: Variables that the configuration sets.
        workdir: The home folder of programs; pip installs commands below it.
        image_path: The PATH of an image; empty for the usual one.
    """
    given = [each for each in image_path.split(":") if each.startswith("/")]
    own = (aliases.FOLDER, f"{workdir}/.local/bin")
    base = {
        "PATH": ":".join([*own, *(given or [_SYSTEM_PATH]), "/node/bin"]),
        "HOME": workdir,
        "USER": USER_NAME,
        "LOGNAME": USER_NAME,
        "TMPDIR": "/tmp",  # noqa: S108 - the cell's own
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "Agg",
    }
    return {**base, **extra}
