"""Packs `sandbox/cell` into what a clean interpreter needs to become a cell.

The stub travels on the interpreter's command line, the bundle on its standard
input: argv is capped at 128 KiB, and a read-only root can take no files.
"""

from __future__ import annotations

import functools
import json
import zlib
from importlib import resources

_PACKAGE = "toolcell_cell"

STUB = f"""\
import sys, os, json, zlib
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
    sources = json.loads(zlib.decompress(read(int(read(8), 16))))
    def find_spec(self, name, path=None, target=None):
        if name in self.sources:
            package = name == "{_PACKAGE}"
            return ModuleSpec(name, self, origin=name, is_package=package)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        source = self.sources.pop(module.__name__)
        exec(compile(source, "<" + module.__name__ + ">", "exec"), module.__dict__)
sys.meta_path.insert(0, Bundle())
__import__("{_PACKAGE}." + sys.argv[1])
sys.modules["{_PACKAGE}." + sys.argv[1]].main(*[int(word) for word in sys.argv[2:]])
"""


@functools.cache
def bundle() -> bytes:
    """Return the length (8 hex digits) and the compressed sources of a cell."""
    folder = resources.files("toolcell.sandbox").joinpath("cell")
    sources = {_PACKAGE: ""}
    for entry in folder.iterdir():
        name = entry.name.removesuffix(".py")
        if entry.name.endswith(".py") and name != "__init__":
            sources[f"{_PACKAGE}.{name}"] = entry.read_text(encoding="utf-8")
    data = zlib.compress(json.dumps(sources).encode(), 6)
    return f"{len(data):08x}".encode() + data


def command(python: str, entry: str, *descriptors: int) -> list[str]:
    """Return the argv that starts `entry` of the bundle under `python`."""
    return [python, "-I", "-c", STUB, entry, *map(str, descriptors)]
