"""The variables by which programs find what packages bring beside modules."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

# Variable, folder of the packages, and the usual places.
_SEARCHED = (
    ("PATH", "bin", ""),
    ("JUPYTER_PATH", "share/jupyter", ""),
    ("XDG_DATA_DIRS", "share", "/usr/local/share:/usr/share"),
)


def of_packages(
    path: str, environment: Mapping[str, str], before: str = ""
) -> dict[str, str]:
    """Return the variables that lead to packages.

    Args:
        path: The folder of the packages.
        environment: The other variables.
        before: Another such folder, which they lead to no more.
    """
    found = {"PYTHONPATH": path}
    for name, folder, usual in _SEARCHED:
        parts = environment.get(name, usual).split(os.pathsep)
        parts = [part for part in parts if part and part != f"{before}/{folder}"]
        if os.path.isdir(f"{path}/{folder}"):
            # The interpreter's own names are first in PATH.
            parts.insert(1 if name == "PATH" else 0, f"{path}/{folder}")
            found[name] = os.pathsep.join(parts)
    return found
