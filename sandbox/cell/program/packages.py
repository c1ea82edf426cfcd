"""Import paths of a program's packages, also for interpreters that it starts."""

from __future__ import annotations

import os
import sys

_SITE = ("site-packages", "dist-packages")
_used = ""


def use(path: str) -> None:
    """Put `path` after the standard library and before the image's own packages."""
    global _used
    sys.path[:] = [each for each in sys.path if each != _used]
    _used = path
    own = (n for n, each in enumerate(sys.path) if os.path.basename(each) in _SITE)
    sys.path.insert(next(own, len(sys.path)), path)
    os.environ["PYTHONPATH"] = path
