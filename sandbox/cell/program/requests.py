"""Requests of the supervisor to the program's process.

A request is its size in eight hexadecimal digits, and three parts that newlines
separate: a JSON header, the inputs as JSON, and the code.
"""

from __future__ import annotations

import functools
import json
import os

from ..wire.contract import SECRETS
from ..wire.frames import RUN_DEFAULTS
from . import arguments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# By C alone: programs may replace what the rest of `json` uses.
_scan: Any = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def _from_json(text: str) -> Any:
    return _scan(text, 0)[0]


def read_request(fd: int, first: bytes, home: str) -> dict[str, Any]:
    """Read a request, and set up its arguments, standard input and packages.

    Args:
        fd: The request socket.
        first: Bytes that have been read from it.
        home: The work dir of the program.
    """
    # Nothing follows a request until its program asks for it.
    data = first
    while len(data) < 8:
        data += os.read(fd, 65536) or os._exit(0)
    size, data = int(data[:8], 16), data[8:]
    body = _read_exactly(fd, size - len(data), data)
    header, named, code = body.split(b"\n", 2)
    request = _parsed(header)
    inputs: dict[str, Any] = _from_json(named.decode()) if named else {}
    if request["inputs_file"]:
        inputs.update(_take_inputs(os.path.join(home, request["inputs_file"])))
    secrets = {**request["variables"], **inputs.pop(SECRETS, {})}
    arguments.take(inputs)
    if not request["final"]:
        # What pip has installed comes before what the image has. In a cell of one
        # program nothing was installed before it.
        arguments.use_user_packages()
    if request["packages"]:
        arguments.use_packages(request["packages"])
    return {**request, "inputs": inputs, "secrets": secrets, "code": code}


def _take_inputs(path: str) -> dict[str, Any]:
    """Return the inputs in a file, which is removed."""
    try:
        with open(path, "rb") as file:
            os.unlink(path)
            inputs: dict[str, Any] = _from_json(file.read().decode())
            return inputs
    except (OSError, StopIteration, ValueError) as error:
        os.write(2, f"toolcell: the inputs were taken away: {error}\n".encode())
        os._exit(127)


# The next run of a session often asks for the same.
@functools.lru_cache(maxsize=1)
def _parsed(header: bytes) -> dict[str, Any]:
    return {**RUN_DEFAULTS, **_from_json(header.decode())}


def _read_exactly(fd: int, size: int, start: bytes) -> bytes:
    parts = [start]
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def frame_request(header: bytes, inputs: bytes, code: bytes) -> bytes:
    """Return a request as `read_request` reads it."""
    body = b"\n".join((header, inputs, code))
    return b"%08x" % len(body) + body
