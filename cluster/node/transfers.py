"""Files of a session, on their way between a driver and the cell."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from toolcell.sandbox import SandboxConfig, SandboxSession
from toolcell.sandbox.spi import folder_prefix

from ..wire.file_chunks import MAX_HEADERS_BYTES, receive_file, send_file
from ..wire.folders import pack_folder, unpack_folder
from ..wire.link import Exchange
from ..wire.message import WireMessage

_Answer = tuple[dict[str, Any], list[bytes]]
_MAX_MOUNTED_BYTES = 16 * 1024**3
TRANSFERS = ("save", "load", "upload", "download")
"""The operations that move files of any size, as archives in parts."""


def max_archive_bytes(config: SandboxConfig) -> int:
    """Return the bytes that a driver may send: more could be written nowhere."""
    if any(not mount.read_only for mount in config.mounts):
        return _MAX_MOUNTED_BYTES
    return config.limits.disk_mib * 1024 * 1024 + MAX_HEADERS_BYTES


async def transfer(
    session: SandboxSession,
    name: str,
    exchange: Exchange,
    asked: dict[str, Any],
    max_bytes: int,
) -> _Answer:
    """Do one of `TRANSFERS`, by way of a temporary folder.

    Args:
        session: The session.
        name: The operation.
        exchange: Carries the archive.
        asked: What the driver says of it.
        max_bytes: Bytes that the driver may send.
    """
    receive = partial(_receive, exchange)
    async with anyio.TemporaryDirectory(prefix=folder_prefix()) as place:
        archive, folder = Path(place, "archive"), Path(place, "folder")
        match name:
            case "upload":
                await receive_file(exchange, receive, archive, max_bytes)
                await to_thread.run_sync(unpack_folder, archive, folder)
                return {"files": await session.upload(folder, asked["path"])}, []
            case "load":
                await receive_file(exchange, receive, archive, max_bytes)
                most = asked["max_bytes"]
                return {"entries": await session.load(archive, max_bytes=most)}, []
        most = asked["max_bytes"]
        fields: dict[str, Any] = {}
        if name == "download":
            path = asked["path"]
            fields["files"] = await session.download(folder, path, max_bytes=most)
            await to_thread.run_sync(pack_folder, folder, archive)
        else:
            fields["left"] = list(await session.save(archive, max_bytes=most))
        await send_file(exchange, receive, archive)
    return fields, []


async def files(session: SandboxSession, name: str, message: WireMessage) -> _Answer:
    """Do what a driver asks of one file, or of a list of them."""
    fields = message.fields
    path = fields["path"]
    match name:
        case "write_file":
            await session.write_file(path, message.blobs[0])
        case "read_file":
            return {}, [await session.read_file(path, fields["max_bytes"])]
        case "list_files":
            found = await session.list_files(path)
            return {"files": [info.model_dump() for info in found]}, []
        case "remove":
            await session.remove(path)
    return {}, []


async def _receive(exchange: Exchange) -> WireMessage:
    _, message = await exchange.receive()
    return message
