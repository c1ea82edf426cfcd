"""Packs `sandbox/cell` into a bundle with which a clean interpreter becomes a cell.

A stub is on the interpreter's command line, the bundle on its standard input: argv is
capped at 128 KiB, and a read-only root takes no files.
"""

from __future__ import annotations

import functools
import importlib.util
import marshal
import os
import pkgutil
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from typing import Any

from ..cell import folder

_PACKAGE = "toolcell_cell"
_SOURCE = "toolcell.sandbox.cell"
# The marshal format that every Python 3 reads; code objects need the same Python.
_MARSHAL_VERSION = 2

STUB = f"""\
import sys, os, marshal, builtins
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
    # Programs may replace those of the module.
    builtins = dict(vars(builtins))
    def find_spec(self, name, path=None, target=None):
        if name in self.modules:
            package = name in self.packages
            return ModuleSpec(name, self, origin=name, is_package=package)
    def create_module(self, spec):
        return None
    def get_code(self, name):
        code = self.modules.pop(name)
        if isinstance(code, str):
            code = compile(code, "<" + name + ">", "exec")
            self.compiled[name] = code
        return code
    def exec_module(self, module):
        code = self.get_code(module.__name__)
        module.__builtins__ = self.builtins
        exec(code, module.__dict__)
sys.meta_path.insert(0, Bundle())
__import__("{_PACKAGE}." + sys.argv[1])
sys.modules["{_PACKAGE}." + sys.argv[1]].main(*[int(fd) for fd in sys.argv[2:]])
"""


def interpreter() -> str:
    """Return the interpreter below any virtual environment of this process."""
    base: str = getattr(sys, "_base_executable", sys.executable)
    return os.path.realpath(base)


@functools.cache
def bundle() -> bytes:
    """Return the sources of a cell, for any python3, after their length."""
    return _pack(sources())


def sources() -> dict[str, str]:
    """Return the text of each module and package of a cell, by its name in a cell."""
    return {
        name: _loader(spec).get_source(spec.name) for name, spec in modules().items()
    }


@functools.cache
def compiled_bundle() -> bytes:
    """Return the compiled modules of a cell, for this very interpreter."""
    return _pack(
        {
            # The byte code cache answers where it is fresh.
            name: folder.renamed(_loader(spec).get_code(spec.name), name)
            for name, spec in modules().items()
        }
    )


def compiled_folder() -> tuple[bytes, str] | None:
    """Return the module that loads the others from their folder, and that folder.

    None: they are in none, but in an archive.
    """
    found = importlib.util.find_spec(folder.__name__)
    places = _package().submodule_search_locations
    if found is None or not places or not os.path.isdir(places[0]):
        return None
    name = f"{_PACKAGE}.folder"
    code = folder.renamed(_loader(found).get_code(found.name), name)
    return _pack({_PACKAGE: "", name: code}), places[0]


def _loader(spec: ModuleSpec) -> Any:
    return spec.loader


def modules() -> dict[str, ModuleSpec]:
    """Return how each module and package of a cell is found, by its name in a cell.

    `importlib.resources` would import more than all the rest of a start.
    """
    return {_PACKAGE: _package(), **dict(_below(_PACKAGE, _package()))}


def _package() -> ModuleSpec:
    spec = importlib.util.find_spec(_SOURCE)
    assert spec is not None
    return spec


def _below(package: str, spec: ModuleSpec) -> Iterator[tuple[str, ModuleSpec]]:
    for module in pkgutil.iter_modules(spec.submodule_search_locations):
        name = f"{package}.{module.name}"
        found = module.module_finder.find_spec(name, None)
        assert found is not None
        yield name, found
        if module.ispkg:
            yield from _below(name, found)


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
