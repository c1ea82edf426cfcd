"""The service `filesystem.Filesystem`: entries of a sandbox's files."""

from __future__ import annotations

from typing import Any

from ..operations.action import Actions
from ..operations.cell_files import resolved
from ..operations.files import (
    LIST,
    MAKE_FOLDER,
    MAX_DEPTH,
    MOVE,
    REMOVE,
    STAT,
    ListArguments,
    MakeFolderArguments,
    MoveArguments,
    RemoveArguments,
    StatArguments,
)
from ..protocol.bodies import parsed
from ..state.sandbox import Sandbox
from .process_service import ClientMessage


class PathRequest(ClientMessage):
    """A request about one entry."""

    path: str = ""
    depth: int = 1


class MoveRequest(ClientMessage):
    """A request to `Move`."""

    source: str
    destination: str


class FilesystemService:
    """Shows and changes the entries of sandboxes.

    Args:
        actions: Leads each request through the guard.
    """

    def __init__(self, actions: Actions) -> None:
        self._actions = actions
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
        wanted = StatArguments(sandbox_id=sandbox.id, path=path)
        async with self._actions.do(STAT, sandbox.token, wanted) as entry:
            return {"entry": entry}

    async def _list(self, sandbox: Sandbox, data: bytes) -> dict[str, Any]:
        asked = parsed(PathRequest, data)
        path = resolved(asked.path, sandbox.home)
        depth = min(max(asked.depth, 1), MAX_DEPTH)
        wanted = ListArguments(sandbox_id=sandbox.id, path=path, depth=depth)
        async with self._actions.do(LIST, sandbox.token, wanted) as entries:
            return {"entries": entries}

    async def _make(self, sandbox: Sandbox, data: bytes) -> dict[str, Any]:
        path = resolved(parsed(PathRequest, data).path, sandbox.home)
        wanted = MakeFolderArguments(sandbox_id=sandbox.id, path=path)
        async with self._actions.do(MAKE_FOLDER, sandbox.token, wanted) as entry:
            return {"entry": entry}

    async def _move(self, sandbox: Sandbox, data: bytes) -> dict[str, Any]:
        asked = parsed(MoveRequest, data)
        wanted = MoveArguments(
            sandbox_id=sandbox.id,
            path=resolved(asked.destination, sandbox.home),
            source=resolved(asked.source, sandbox.home),
        )
        async with self._actions.do(MOVE, sandbox.token, wanted) as entry:
            return {"entry": entry}

    async def _remove(self, sandbox: Sandbox, data: bytes) -> dict[str, Any]:
        path = resolved(parsed(PathRequest, data).path, sandbox.home)
        wanted = RemoveArguments(sandbox_id=sandbox.id, path=path)
        async with self._actions.do(REMOVE, sandbox.token, wanted):
            return {}
