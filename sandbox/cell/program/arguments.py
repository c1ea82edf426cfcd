"""What a program finds as its arguments and on its standard input."""

from __future__ import annotations

import binascii
import os
import sys

from ..wire.contract import ARGV, STDIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def take(inputs: dict[str, Any], home: str) -> None:
    """Set both up for the program, if they are among its inputs, and take them out."""
    stdin = inputs.pop(STDIN, None)
    if stdin is not None:
        _give(binascii.a2b_base64(stdin))
    argv = inputs.pop(ARGV, None)
    if argv:
        sys.argv = argv
        file = os.path.join(home, argv[0])
        # Else `multiprocessing` would look for it in vain.
        if os.path.isfile(file):
            sys.modules["__main__"].__dict__["__file__"] = file


def _give(data: bytes) -> None:
    kept = os.memfd_create("stdin", 0)
    view = memoryview(data)
    while view:
        view = view[os.write(kept, view) :]
    os.lseek(kept, 0, os.SEEK_SET)
    os.dup2(kept, 0)
    os.close(kept)
