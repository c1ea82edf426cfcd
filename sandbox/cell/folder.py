"""Loads the modules of a cell from their folder, for a launcher that is to start early.

The host sends this module alone, and the folder: to pack the others would take it as
long as Python's own start. All are read at once, compiled where Python keeps that,
since the launcher leaves the file system that they are in.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, NoReturn

_MAX_PATH = 4096


def main(control_fd: int) -> NoReturn:
    """Load all modules of the folder that standard input names; be the launcher."""
    # Only the user's own interpreter writes beside their modules.
    sys.dont_write_bytecode = True
    bundle: Any = sys.meta_path[0]
    package = __package__ or ""
    found = dict(compiled(package, os.read(0, _MAX_PATH).decode()))
    bundle.modules.update(found)
    bundle.packages.update(name.rpartition(".")[0] for name in found)
    from .launcher import main as launcher

    launcher.main(control_fd)


def compiled(package: str, folder: str) -> Iterator[tuple[str, CodeType]]:
    """Yield the name and the code of each module of a package, and of those in it."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        stem, extension = os.path.splitext(name)
        if extension == ".py":
            full = package if stem == "__init__" else f"{package}.{stem}"
            yield full, renamed(SourceFileLoader(full, path).get_code(full), full)
        elif os.path.isfile(os.path.join(path, "__init__.py")):
            yield from compiled(f"{package}.{name}", path)


def renamed(code: CodeType | None, module: str) -> CodeType:
    """Return code without the paths of this machine, which programs could read there.

    Args:
        code: The code of a module, or of a part of it.
        module: The name that stands in its place.
    """
    assert code is not None
    constants = tuple(
        renamed(constant, module) if isinstance(constant, CodeType) else constant
        for constant in code.co_consts
    )
    return code.replace(co_filename=f"<{module}>", co_consts=constants)
