"""Names the package that a program lacks, from the error that ended it."""

from __future__ import annotations

import re
import sys

from .result import ExceptionInfo

_NO_MODULE = re.compile(r"No module named '([A-Za-z_][A-Za-z0-9_]{0,99})'")
"""A name with dots is a part of a package that is there."""

_PACKAGES = {
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Packages whose name differs from their module's."""


def missing_package(exception: ExceptionInfo | None) -> tuple[str, ...]:
    """Return what adds the module that a program did not find; () if that is not it.

    The program reports its error itself, so the name is a guess.
    """
    if exception is None or exception.type != "ModuleNotFoundError":
        return ()
    module = _NO_MODULE.fullmatch(exception.message)
    if module is None or module[1] in sys.stdlib_module_names:
        return ()
    package = _PACKAGES.get(module[1], module[1])
    return (
        f"{module[1]} is not installed in the cell: {package!r} in `packages` adds it"
        f" (--package {package} in a shell)",
    )
