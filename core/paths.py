"""The ways that paths take over links (internal to toolcell)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
"""The PATH of programs that get nothing of this process's environment."""

MAX_LINKS = 40
"""Links that one path may lead over, as on Linux. When it is reached a path with
another one is refused."""


def places_on_the_way(path: str | os.PathLike[str]) -> list[Path]:
    """Return every place that a path leads over, and last the one where it ends.

    A place is free of links up to its last part, which may be a link. Who writes to a
    folder with one of them in it can make the path lead elsewhere.

    Args:
        path: It need not be there. A relative one starts at the working directory.

    Raises:
        ValueError: It leads over more than `MAX_LINKS` links.
    """
    here, links = Path("/"), 0
    left = str(Path(path).absolute()).split("/")[::-1]
    found = []
    while left:
        name = left.pop()
        if name == "..":
            here = here.parent
        elif name not in ("", "."):
            found.append(here / name)
            if target := _link(found[-1]):
                links += 1
                if links > MAX_LINKS:
                    raise ValueError(f"{path} leads over more than {MAX_LINKS} links")
                here = Path("/") if target.startswith("/") else here
                left += target.split("/")[::-1]
            else:
                here = found[-1]
    return [*found, here]


def last_place_in(folder: Path, way: Sequence[Path]) -> Path | None:
    """Return the last place of a way that lies in a folder; None if it has none.

    Args:
        folder: A path free of links. It does not lie in itself.
        way: The places that a path leads over, as `places_on_the_way` returns them.
    """
    return next((place for place in reversed(way) if folder in place.parents), None)


def interpreter_folders(python: str | None) -> list[Path]:
    """Return the folders that an interpreter's program and libraries lie in.

    Args:
        python: Its path; links are followed first. None: no interpreter, no folders.
    """
    if python is None:
        return []
    prefix = Path(os.path.realpath(python)).parent.parent
    return [prefix / name for name in ("bin", "lib", "lib64", "include")]


def _link(path: Path) -> str:
    """Return what a link says; empty if the path is none, or cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""
