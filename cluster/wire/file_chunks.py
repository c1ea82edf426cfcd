"""Files of any size over an exchange, in parts, with a check of the whole."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO

import anyio
from anyio import to_thread

from toolcell.core import InvalidInputError, SandboxError

from .link import Exchange
from .message import WireMessage

PART_BYTES = 256 * 1024
"""Bytes of a file in one message."""

MAX_HEADERS_BYTES = 160 * 1024 * 1024
"""Bytes of an archive beside those of its files: 10,000 headers of 16 KiB at most."""

MAX_AHEAD = 16
"""Parts under way. When it is reached the sender waits until one is written."""

Receive = Callable[[], Awaitable[WireMessage]]


async def send_file(exchange: Exchange, receive: Receive, source: Path) -> None:
    """Send a file to the other end, which calls `receive_file`.

    Args:
        exchange: Takes the parts.
        receive: Returns the next message of the other end.
        source: The file.

    Raises:
        InvalidInputError: It cannot be read.
        CellLostError: The link is gone.
    """
    digest, offset, ahead = hashlib.sha256(), 0, 0

    def read(file: IO[bytes]) -> bytes:
        part = file.read(PART_BYTES)
        digest.update(part)
        return part

    try:
        async with await anyio.open_file(_opened(source), "rb") as file:
            while part := await to_thread.run_sync(read, file.wrapped):
                if ahead == MAX_AHEAD:
                    await receive()
                    ahead -= 1
                await exchange.send({"offset": offset}, part)
                offset += len(part)
                ahead += 1
    except OSError as error:
        raise _unusable("read", source, error) from None
    await exchange.send({"total": offset, "sha256": digest.hexdigest()})
    for _ in range(ahead):
        await receive()


async def receive_file(
    exchange: Exchange, receive: Receive, target: Path, max_bytes: int
) -> None:
    """Write a file that the other end sends; one that fails leaves nothing.

    Args:
        exchange: Tells the sender what is written.
        receive: Returns the next message of the other end.
        target: The file, new, and its owner's alone.
        max_bytes: Bytes that it may have. When it is exceeded nothing of it stays.

    Raises:
        InvalidInputError: It exists, is larger, or cannot be written.
        SandboxError: It did not arrive whole (`details["reason"]` is `damaged`).
        CellLostError: The link is gone.
    """
    try:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise _unusable("write", target, error) from None
    try:
        async with await anyio.open_file(fd, "wb") as file:
            await _receive(exchange, receive, file.wrapped, max_bytes)
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            await anyio.Path(target).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _unusable("write", target, error) from None
        raise


async def _receive(
    exchange: Exchange, receive: Receive, file: IO[bytes], max_bytes: int
) -> None:
    digest, size = hashlib.sha256(), 0

    def write(part: bytes) -> None:
        file.write(part)
        digest.update(part)

    while "offset" in (fields := (message := await receive()).fields):
        if fields["offset"] != size:
            break
        part = b"".join(message.blobs)
        if size + len(part) > max_bytes:
            raise InvalidInputError(
                f"an archive has more than {max_bytes} bytes",
                hint="move less at once",
                details={"reason": "too_large"},
            )
        await to_thread.run_sync(write, part)
        size += len(part)
        exchange.send_soon({"taken": size})
    if (fields.get("total"), fields.get("sha256")) != (size, digest.hexdigest()):
        raise SandboxError(
            "a file did not arrive whole",
            hint="send it again",
            details={"reason": "damaged"},
        )


def _opened(source: Path) -> int:
    """Return a descriptor of a regular file. Raises OSError, InvalidInputError."""
    # Nobody may ever write into a named pipe.
    fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise InvalidInputError(f"{source} is no file", hint="use a regular file")


def _unusable(verb: str, place: Path, error: OSError) -> InvalidInputError:
    why = os.strerror(error.errno or 0)
    return InvalidInputError(f"cannot {verb} {place}: {why}", hint="use another place")
