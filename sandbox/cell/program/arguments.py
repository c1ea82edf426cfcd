"""The arguments, the standard input and the packages of a program."""

from __future__ import annotations

import binascii
import os
import sys

from ..wire.contract import ARGV, STDIN
from . import streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_SITE = ("site-packages", "dist-packages")
_packages = ""


def take(inputs: dict[str, Any]) -> None:
    """Remove arguments and standard input from `inputs`, and set them up if given."""
    stdin = inputs.pop(STDIN, None)
    if stdin is not None:
        _replace_stdin(binascii.a2b_base64(stdin))
    argv = inputs.pop(ARGV, None)
    if argv:
        sys.argv = argv


def _replace_stdin(data: bytes) -> None:
    memory_fd = os.memfd_create("stdin", 0)
    view = memoryview(data)
    while view:
        view = view[os.write(memory_fd, view) :]
    os.lseek(memory_fd, 0, os.SEEK_SET)
    os.dup2(memory_fd, 0)
    os.close(memory_fd)
    # The old stream may hold what is left of an earlier run's.
    streams.open_stdin()


def use_packages(path: str) -> None:
    """Put `path` after the standard library and before the image's own packages.

    Interpreters that the program starts find them, too.
    """
    global _packages
    sys.path[:] = [each for each in sys.path if each != _packages]
    _packages = path
    own = (n for n, each in enumerate(sys.path) if os.path.basename(each) in _SITE)
    sys.path.insert(next(own, len(sys.path)), path)
    os.environ["PYTHONPATH"] = path
