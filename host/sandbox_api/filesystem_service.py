"""The service `filesystem.Filesystem`: entries of a sandbox's files."""

from __future__ import annotations

from typing import Any

from ..sandbox_http.bodies import parsed
from ..sandbox_http.errors import APIError
from ..sandbox_state.sandbox import Sandbox
from .cell_files import CellFiles, resolved
from .guarded import GuardedCalls
from .process_service import Message

_MAX_DEPTH = 64


class PathRequest(Message):
    """A request about one entry."""

    path: str = ""
    depth: int = 1


class MoveRequest(Message):
    """A request to `Move`."""

    source: str
    destination: str


class FilesystemService:
    """Shows and changes the entries of sandboxes.

    Args:
        calls: Admits each request.
    """

    def __init__(self, calls: GuardedCalls) -> None:
        self._calls = calls
        self.unary = {
            "Stat": self._stat,
            "ListDir": self._list,
            "MakeDir": self._make,
            "Move": self._move,
            "Remove": self._remove,
        }
        """The methods with one message on each side."""

    async def _stat(self, sandbox: Sandbox, data: bytes) -> dict[str, Any]:
        path = resolved(parsed(PathRequest, data).path, sandbox.home)
        call = {"path": path, "operation": "stat"}
        async with self._calls.of(sandbox, "read", call) as permit:
            path = str(permit.call.arguments["path"])
            return {"entry": await _described(sandbox, path)}

    async def _list(self, sandbox: Sandbox, data: bytes) -> dict[str, Any]:
        wanted = parsed(PathRequest, data)
        path = resolved(wanted.path, sandbox.home)
        depth = min(max(wanted.depth, 1), _MAX_DEPTH)
        call = {"path": path, "operation": "list"}
        async with self._calls.of(sandbox, "read", call) as permit:
            path = str(permit.call.arguments["path"])
            files = CellFiles(sandbox.session)
            entries = await files.below(path, depth)
            if sandbox.has_metadata and entries:
                entries = await files.with_metadata(entries)
            return {"entries": entries}

    async def _make(self, sandbox: Sandbox, data: bytes) -> dict[str, Any]:
        path = resolved(parsed(PathRequest, data).path, sandbox.home)
        call = {"path": path, "operation": "make_folder"}
        async with self._calls.of(sandbox, "write", call) as permit:
            path = str(permit.call.arguments["path"])
            files = CellFiles(sandbox.session)
            await files.make_folder(path)
            return {"entry": await files.stat(path)}

    async def _move(self, sandbox: Sandbox, data: bytes) -> dict[str, Any]:
        wanted = parsed(MoveRequest, data)
        call = {
            "path": resolved(wanted.destination, sandbox.home),
            "source": resolved(wanted.source, sandbox.home),
            "operation": "move",
        }
        async with self._calls.of(sandbox, "write", call) as permit:
            admitted = permit.call.arguments
            source, target = str(admitted["source"]), str(admitted["path"])
            await CellFiles(sandbox.session).move(source, target)
            return {"entry": await _described(sandbox, target)}

    async def _remove(self, sandbox: Sandbox, data: bytes) -> dict[str, Any]:
        path = resolved(parsed(PathRequest, data).path, sandbox.home)
        if path in ("/", sandbox.home):
            raise APIError(400, f"{path} cannot be removed")
        call = {"path": path, "operation": "remove"}
        async with self._calls.of(sandbox, "write", call) as permit:
            path = str(permit.call.arguments["path"])
            await CellFiles(sandbox.session).remove(path)
            return {}


async def _described(sandbox: Sandbox, path: str) -> dict[str, Any]:
    files = CellFiles(sandbox.session)
    entry = await files.stat(path)
    if sandbox.has_metadata:
        [entry] = await files.with_metadata([entry])
    return entry
