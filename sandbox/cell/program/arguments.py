"""The arguments, the standard input and the packages of a program."""

from __future__ import annotations

import binascii
import os
import sys

from ..wire import search_paths
from ..wire.contract import ARGV, INSTALLED, MERGED, STDIN
from . import streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_SITE = ("site-packages", "dist-packages")
_packages = ""
installed: dict[str, str] = {}
"""The error of each `pip install` of a program; empty if it went well."""


def take(inputs: dict[str, Any]) -> None:
    """Remove all but variables from `inputs`, and set it up if given."""
    global installed
    installed = inputs.pop(INSTALLED, installed)
    stdin = inputs.pop(STDIN, None)
    if stdin is not None:
        _replace_stdin(binascii.a2b_base64(stdin))
    if inputs.pop(MERGED, False):
        os.dup2(1, 2)
    argv = inputs.pop(ARGV, None)
    if argv:
        set_argv(argv)


def set_argv(argv: list[str]) -> None:
    """Set the arguments, and the command line of a plain interpreter with them."""
    sys.argv = argv
    sys.__dict__["orig_argv"] = [sys.executable, *argv]


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
    """Have a program find the modules, commands and data files of packages.

    Its modules come after the standard library and before the image's own packages.
    Interpreters that the program starts find them, too. Data files are where a virtual
    environment has them: below `sys.prefix`.
    """
    global _packages
    sys.path[:] = [each for each in sys.path if each != _packages]
    os.environ.update(search_paths.of_packages(path, os.environ, _packages))
    if os.path.isdir(f"{path}/share"):
        sys.prefix = sys.exec_prefix = path
    _packages = path
    _add_to_path(path)


def use_user_packages() -> bool:
    """Have the program find what pip has installed; return True if it is new here.

    pip installs into the home folder, as all else is read-only. The interpreter of the
    program would not look there, and those that it starts do.
    """
    version = "python%d.%d" % sys.version_info[:2]
    path = os.path.join(os.environ["HOME"], ".local/lib", version, "site-packages")
    if path in sys.path or not os.path.isdir(path):
        return False
    _add_to_path(path)
    # That the folder was not there is remembered.
    sys.path_importer_cache.pop(path, None)
    return True


class UserPackages:
    """Finds modules that pip has installed since the run began."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        """Look for a module that no other finder has found."""
        if path is not None or not use_user_packages():
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name)


def _add_to_path(path: str) -> None:
    own = (n for n, each in enumerate(sys.path) if os.path.basename(each) in _SITE)
    sys.path.insert(next(own, len(sys.path)), path)
