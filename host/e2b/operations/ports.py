"""`sandbox.port`: connections to servers in sandboxes."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from anyio.abc import ByteStream
from pydantic import AfterValidator, Field

from toolcell.core import InvalidInputError

from ..protocol.errors import APIError
from .action import Action, SandboxArguments, Scene

METHOD = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$"
_VISIBLE = r"^[\x21-\x7e]*$"

_PATH = r"^/[\x21-\x22\x24-\x3e\x40-\x7e]*$"
_NEEDLESS = re.compile(r"%(2[de]|3[0-9]|[46][1-9a-f]|[57][0-9a]|5f)", re.IGNORECASE)


def _plain(path: str) -> str:
    """Return a path that hides no letter, digit or dot from rules and people."""
    if found := _NEEDLESS.search(path):
        raise ValueError(f"{found[0]} has to be written as the character it stands for")
    return path


class PortArguments(SandboxArguments):
    """A request to a server, without headers and body."""

    port: Annotated[int, Field(ge=1, le=65_535)]
    method: Annotated[str, Field(pattern=METHOD)]
    path: Annotated[str, Field(pattern=_PATH), AfterValidator(_plain)]
    """As it is sent, percent-encoded where it must be."""

    query: Annotated[str, Field(pattern=_VISIBLE)] = ""
    """The part behind `?`, as it is sent."""


@dataclass(frozen=True, slots=True)
class Server:
    """A connection to a server, and the request that may be sent over it."""

    stream: ByteStream
    port: int
    method: str
    target: str


@asynccontextmanager
async def _connect(scene: Scene, arguments: PortArguments) -> AsyncIterator[Server]:
    port, path, query = arguments.port, arguments.path, arguments.query
    try:
        stream = await scene.sandbox(arguments).session.connect(port)
    except InvalidInputError as error:
        # Clients look for these words.
        raise APIError(502, f"the port is not open: {error.message}") from None
    async with stream:
        target = f"{path}?{query}" if query else path
        yield Server(stream, port, arguments.method, target)


CONNECT = Action("sandbox.port", PortArguments, _connect)
