"""Packs `sandbox/cell` into a bundle with which a clean interpreter becomes a cell.

A stub is on the interpreter's command line, the bundle on its standard input: argv is
capped at 128 KiB, and a read-only root takes no files.
"""

from __future__ import annotations

import functools
import importlib.util
import marshal
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from types import CodeType
from typing import Any

_PACKAGE = "toolcell_cell"
_SOURCE = "toolcell.sandbox.cell"
# The marshal format that every Python 3 reads; code objects need the same Python.
_MARSHAL_VERSION = 2

STUB = f"""\
import sys, os, marshal
ModuleSpec = type(sys.__spec__)
def read(size):
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            os._exit(70)
        data += part
    return data
class Bundle:
    modules = marshal.loads(read(int(read(8), 16)))
    packages = {{name.rpartition(".")[0] for name in modules}}
    compiled = {{}}
    def find_spec(self, name, path=None, target=None):
        if name in self.modules:
            package = name in self.packages
            return ModuleSpec(name, self, origin=name, is_package=package)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        code = self.modules.pop(module.__name__)
        if isinstance(code, str):
            code = compile(code, "<" + module.__name__ + ">", "exec")
            self.compiled[module.__name__] = code
        exec(code, module.__dict__)
sys.meta_path.insert(0, Bundle())
__import__("{_PACKAGE}." + sys.argv[1])
sys.modules["{_PACKAGE}." + sys.argv[1]].main(*[int(fd) for fd in sys.argv[2:]])
"""


@functools.cache
def bundle() -> bytes:
    """Return the sources of a cell, for any python3, after their length."""
    return _pack(
        {
            name: path.read_text(encoding="utf-8")
            for name, path in module_files().items()
        }
    )


@functools.cache
def compiled_bundle() -> bytes:
    """Return the compiled modules of a cell, for this very interpreter."""
    modules: dict[str, CodeType] = {}
    for name in module_files():
        spec = importlib.util.find_spec(name.replace(_PACKAGE, _SOURCE, 1))
        assert spec is not None
        assert spec.loader is not None
        # The byte code cache answers where it is fresh.
        code = spec.loader.get_code(spec.name)  # type: ignore[attr-defined]
        modules[name] = _renamed(code, f"<{name}>")
    return _pack(modules)


def _renamed(code: CodeType, name: str) -> CodeType:
    """Return code without the paths of this host, which programs could read there."""
    constants = tuple(
        _renamed(constant, name) if isinstance(constant, CodeType) else constant
        for constant in code.co_consts
    )
    return code.replace(co_filename=name, co_consts=constants)


def module_files() -> dict[str, Traversable]:
    """Return the file of each module and package of a cell, by its name in a cell."""
    return dict(_below(_PACKAGE, resources.files(_SOURCE)))


def _below(package: str, folder: Traversable) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        name, dot, ending = entry.name.partition(".")
        if (name, ending) == ("__init__", "py"):
            yield package, entry
        elif ending == "py":
            yield f"{package}.{name}", entry
        elif not dot and name != "__pycache__":
            yield from _below(f"{package}.{name}", entry)


def _pack(modules: Any) -> bytes:
    return framed(marshal.dumps(modules, _MARSHAL_VERSION))


def framed(modules: bytes) -> bytes:
    """Return modules after their length, as the stub reads them."""
    return f"{len(modules):08x}".encode() + modules


ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""The environment of every supervisor: large blocks are in huge pages, so a fork of
200 MB copies hundreds of page table entries, not tens of thousands. Programs do not see
it."""


def command(python: str, entry: str, *descriptors: int, site: bool = True) -> list[str]:
    """Return the argv that starts `entry` of the bundle under `python`.

    Args:
        python: The interpreter.
        entry: The module of the bundle whose `main` is called.
        descriptors: Its arguments.
        site: True to run the interpreter's `site` module, including .pth files.
    """
    flags = ["-I"] if site else ["-I", "-S"]
    return [python, *flags, "-c", STUB, entry, *map(str, descriptors)]
