"""The interpreter of a backend's cells: wheels that fit it, and its byte code.

Both come from a cell: only there is the interpreter of an image, and source of packages
is not parsed outside of cells.
"""

from __future__ import annotations

import struct
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from toolcell.core import PackageError

from ..client.backend import Backend
from ..client.event_stream import PendingEvents, stream_run
from ..client.types import Program
from ..config.settings import Limits
from ..results.events import Stdout

_ASK = b"""\
import os, platform, sys, sysconfig
libc, version = platform.libc_ver()
if not libc and any(name.startswith("ld-musl-") for name in os.listdir("/lib")):
    libc, version = "musl", "1.2"
free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
[sys.implementation.name, sys.implementation.cache_tag, platform.machine(),
 sys.version_info[0], sys.version_info[1], libc, version, free]
"""
_COMPILE = b"""\
import importlib.util, marshal, os, struct, sys
def send(data):
    view = memoryview(data)
    while view:
        view = view[os.write(1, view):]
for folder, folders, names in os.walk(layer):
    # Programs do not import a package's own tests, which are half of some packages.
    folders[:] = [each for each in folders if each != "tests"]
    for name in names:
        path = os.path.join(folder, name)
        if not name.endswith(".py"):
            continue
        try:
            with open(path, "rb") as file:
                source = file.read()
            code = compile(source, path, "exec", dont_inherit=True)
            head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")
            data = head + importlib.util.source_hash(source) + marshal.dumps(code)
        except Exception:
            continue
        short = os.path.relpath(path, layer).encode()
        send(struct.pack(">II", len(short), len(data)) + short + data)
"""
_COMPILE_SECONDS = 600.0
_COMPILE_MB = 512
_MAX_BYTE_CODE = 2**30
_MANYLINUX = (40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 28, 17)
_MACHINES = ("x86_64", "aarch64")
_TagPart = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{0,64}$")]
_Answer = tuple[_TagPart, _TagPart, _TagPart, int, int, _TagPart, _TagPart, bool]


class Interpreter(BaseModel):
    """The facts that decide which wheels fit."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    version: str
    """Its major and minor version, such as `3.11`."""

    tag: str
    """The tag of its byte code, such as `cpython-311`."""

    platform: str
    """Its platform in the words of uv, such as `x86_64-manylinux_2_36`."""


async def ask(backend: Backend) -> Interpreter:
    """Return the interpreter of a new cell of a backend.

    Raises:
        PackageError: No wheels are made for it.
        SandboxUnavailableError: No cell is available.
    """
    program = Program(code=_ASK, language="python", inputs=b"", limits=Limits())
    async with await backend.create_cell(Limits()) as cell:
        result = cell.result(await cell.run(program), program)
    try:
        values = tuple(result.value) if isinstance(result.value, list) else ()
        answer = TypeAdapter(_Answer).validate_python(values, strict=True)
    except ValidationError:
        raise _unfit(f"it did not say what it is: {result.stderr[-300:]}") from None
    name, tag, machine, major, minor, libc, version, free = answer
    if name != "cpython" or free:
        raise _unfit("only CPython with its global lock is supported")
    if machine not in _MACHINES:
        raise _unfit(f"{machine} is not supported")
    return Interpreter(
        version=f"{major}.{minor}", tag=tag, platform=_platform(machine, libc, version)
    )


def _platform(machine: str, libc: str, version: str) -> str:
    if libc == "musl":
        return f"{machine}-unknown-linux-musl"
    minor = version.partition(".")[2]
    known = int(minor) if libc == "glibc" and minor.isdigit() else 0
    for minor_version in _MANYLINUX:
        if minor_version <= known:
            return f"{machine}-manylinux_2_{minor_version}"
    raise _unfit(f"its C library is {libc or 'unknown'} {version}")


def _unfit(why: str) -> PackageError:
    return PackageError(
        f"packages cannot be installed for the interpreter of these cells: {why}",
        hint="use an image that has the packages",
        details={"reason": "no_wheel"},
    )


async def compile_layer(
    backend: Backend, layer: Path, shown_as: str, tag: str, limits: Limits
) -> None:
    """Compile the modules of a layer in a cell.

    Modules that fail to compile stay without byte code.

    Args:
        backend: Makes the cell; it shows the layer already.
        layer: The path of the layer here.
        shown_as: The path of the layer in the cell.
        tag: The tag of the byte code.
        limits: The limits of the manager's cells.
    """
    receiver = _Receiver(layer, tag)
    code = f"layer = {shown_as!r}\n".encode() + _COMPILE
    own = limits.model_copy(
        update={
            "wall_seconds": _COMPILE_SECONDS,
            "cpu_seconds": None,
            "memory_mib": max(limits.memory_mib, _COMPILE_MB),
            "output_bytes": _MAX_BYTE_CODE,
        }
    )
    program = Program(
        code=code, language="python", inputs=b"", limits=own, streamed=True
    )
    async with (
        await backend.create_cell(own) as cell,
        aclosing(stream_run(cell, program, PendingEvents())) as events,
    ):
        async for event in events:
            if isinstance(event, Stdout):
                receiver.take(event.data)


class _Receiver:
    """Writes received byte code beside its sources, and nowhere else."""

    def __init__(self, layer: Path, tag: str) -> None:
        self._sources = {
            path.relative_to(layer).as_posix(): path for path in layer.rglob("*.py")
        }
        self._suffix = f".{tag}.pyc"
        self._waiting = bytearray()

    def take(self, data: bytes) -> None:
        """Take a piece of output of the cell."""
        self._waiting += data
        while len(self._waiting) >= 8:
            name_size, size = struct.unpack_from(">II", self._waiting)
            end = 8 + name_size + size
            if len(self._waiting) < end:
                return
            name = self._waiting[8 : 8 + name_size].decode("utf-8", "replace")
            self._write(name, bytes(self._waiting[8 + name_size : end]))
            del self._waiting[:end]

    def _write(self, name: str, data: bytes) -> None:
        source = self._sources.pop(name, None)
        if source is None:
            return
        folder = source.parent / "__pycache__"
        folder.mkdir(exist_ok=True)
        (folder / f"{source.stem}{self._suffix}").write_bytes(data)
