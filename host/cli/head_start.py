"""Work of a command that can begin before its imports."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

_NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"


@contextmanager
def head_start(backend: str) -> Iterator[None]:
    """Start the launcher, if the backend has one, and look for no plugins of pydantic.

    To look takes as long as Python's own start, and such a command runs no code of
    its user that a plugin could be for.

    Raises:
        SandboxUnavailableError: The launcher cannot be started.
    """
    from toolcell.sandbox import early_launcher

    has_launcher = backend == "subprocess" and sys.platform == "linux"
    before = os.environ.get(_NO_PLUGINS)
    os.environ[_NO_PLUGINS] = "__all__"
    try:
        with early_launcher() if has_launcher else nullcontext():
            yield
    finally:
        if before is None:
            del os.environ[_NO_PLUGINS]
        else:
            os.environ[_NO_PLUGINS] = before
