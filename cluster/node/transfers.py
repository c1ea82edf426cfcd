"""Files of a session, on their way between a driver and the cell."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from toolcell.sandbox import SandboxSession, folder_prefix

from ..wire.folders import pack_folder, unpack_folder
from ..wire.link import Exchange
from ..wire.message import Message
from ..wire.parts import receive_file, send_file

_Answer = tuple[dict[str, Any], list[bytes]]
TRANSFERS = ("save", "load", "upload", "download")
"""The operations that move files of any size, as archives in parts."""


async def transfer(
    session: SandboxSession, name: str, exchange: Exchange, asked: dict[str, Any]
) -> _Answer:
    """Do one of `TRANSFERS`, by way of a temporary folder."""
    hear = partial(_heard, exchange)
    async with anyio.TemporaryDirectory(prefix=folder_prefix()) as place:
        archive, folder = Path(place, "archive"), Path(place, "folder")
        match name:
            case "upload":
                await receive_file(exchange, hear, archive)
                await to_thread.run_sync(unpack_folder, archive, folder)
                return {"files": await session.upload(folder, asked["path"])}, []
            case "load":
                await receive_file(exchange, hear, archive)
                most = asked["max_bytes"]
                return {"entries": await session.load(archive, max_bytes=most)}, []
        most = asked["max_bytes"]
        told: dict[str, Any] = {}
        if name == "download":
            path = asked["path"]
            told["files"] = await session.download(folder, path, max_bytes=most)
            await to_thread.run_sync(pack_folder, folder, archive)
        else:
            told["left"] = list(await session.save(archive, max_bytes=most))
        await send_file(exchange, hear, archive)
    return told, []


async def files(session: SandboxSession, name: str, message: Message) -> _Answer:
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
            return {"files": [each.model_dump() for each in found]}, []
        case "remove":
            await session.remove(path)
    return {}, []


async def _heard(exchange: Exchange) -> Message:
    _, message = await exchange.receive()
    return message
