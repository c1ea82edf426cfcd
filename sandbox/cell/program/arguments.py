"""The arguments and the standard input of a program."""

from __future__ import annotations

import binascii
import os
import sys

from ..wire.contract import ARGV, STDIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def take(inputs: dict[str, Any], home: str) -> None:
    """Remove arguments and standard input from `inputs`, and set them up if given."""
    stdin = inputs.pop(STDIN, None)
    if stdin is not None:
        _replace_stdin(binascii.a2b_base64(stdin))
    argv = inputs.pop(ARGV, None)
    if argv:
        sys.argv = argv
        file = os.path.join(home, argv[0])
        # `multiprocessing` would look in vain for a file that is not there.
        if os.path.isfile(file):
            sys.modules["__main__"].__dict__["__file__"] = file


def _replace_stdin(data: bytes) -> None:
    memory_fd = os.memfd_create("stdin", 0)
    view = memoryview(data)
    while view:
        view = view[os.write(memory_fd, view) :]
    os.lseek(memory_fd, 0, os.SEEK_SET)
    os.dup2(memory_fd, 0)
    os.close(memory_fd)
