"""Names the module that a program lacks, from the error that ended it."""

from __future__ import annotations

import re
import sys

from .result import ExceptionInfo

_NO_MODULE = re.compile(r"No module named '([A-Za-z_][A-Za-z0-9_]{0,99})'")
"""A name with dots is a part of a package that is there."""


def missing_package(exception: ExceptionInfo | None) -> tuple[str, ...]:
    """Return a remark on the module that a program did not find; () if that is not it.

    The program reports its error itself, and a module may bear the name of another
    project's package, so no package is named.
    """
    if exception is None or exception.type != "ModuleNotFoundError":
        return ()
    module = _NO_MODULE.fullmatch(exception.message)
    if module is None or module[1] in sys.stdlib_module_names:
        return ()
    return (
        f"the program says that module {module[1]!r} is missing; its package, which"
        " may have another name, has to be in the `packages` of the sandbox",
    )
