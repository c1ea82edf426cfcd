"""The watching part of `filesystem.Filesystem`: folders whose changes are reported."""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toolcell.sandbox.spi import FileChange

from ...http.bodies import Bounds
from ..operations.action import Actions
from ..operations.cell_files import resolved
from ..operations.files import WATCH, WatchArguments, entries_of
from ..protocol.bodies import parsed
from ..protocol.connect_rpc import answer_stream, ping_seconds, read_one
from ..protocol.errors import APIError
from ..state.sandbox import Sandbox, Watcher
from .process_service import ClientMessage

_TYPES = {
    "created": "EVENT_TYPE_CREATE",
    "written": "EVENT_TYPE_WRITE",
    "removed": "EVENT_TYPE_REMOVE",
    "renamed": "EVENT_TYPE_RENAME",
    "chmod": "EVENT_TYPE_CHMOD",
}


class WatchRequest(ClientMessage):
    """A folder to watch."""

    path: str = ""
    recursive: bool = False
    include_entry: bool = False
    allow_network_mounts: bool = False


class WatcherRequest(ClientMessage):
    """A request about a watcher."""

    watcher_id: str = ""


class Watchers:
    """Tells clients what changes in folders of sandboxes.

    Args:
        bounds: The bounds of a message.
        actions: Leads each watch through the guard.
    """

    def __init__(self, bounds: Bounds, actions: Actions) -> None:
        self._bounds = bounds
        self._actions = actions
        self.unary = {
            "CreateWatcher": self._create,
            "GetWatcherEvents": self._events_of,
            "RemoveWatcher": self._remove,
        }
        """The methods with one message on each side."""

    async def watch(self, request: Request, sandbox: Sandbox) -> Response:
        """Stream the changes of a folder until the client leaves."""
        data = await read_one(request, self._bounds)
        async with AsyncExitStack() as opening:
            opened = self._opened(sandbox, parsed(WatchRequest, data))
            watcher = await opening.enter_async_context(opened)
            opening.push_async_callback(watcher.watch.aclose)
            release = opening.pop_all().aclose
        return answer_stream(
            request,
            _stream(sandbox, watcher),
            keep_alive={"keepalive": {}},
            keep_alive_seconds=ping_seconds(request),
            release=release,
        )

    async def _create(self, sandbox: Sandbox, data: bytes) -> dict[str, Any]:
        async with self._opened(sandbox, parsed(WatchRequest, data)) as watcher:
            watcher_id = secrets.token_hex(16)
            sandbox.watchers[watcher_id] = watcher
        return {"watcherId": watcher_id}

    def _opened(
        self, sandbox: Sandbox, asked: WatchRequest
    ) -> AbstractAsyncContextManager[Watcher]:
        wanted = WatchArguments(
            sandbox_id=sandbox.id,
            path=resolved(asked.path, sandbox.home),
            recursive=asked.recursive,
            entries=asked.include_entry,
        )
        return self._actions.do(WATCH, sandbox.token, wanted)

    async def _events_of(self, sandbox: Sandbox, data: bytes) -> dict[str, Any]:
        watcher = _watcher(sandbox, data)
        async with watcher.turn:
            changes = await watcher.watch.changes()
        return {"events": await _events(sandbox, watcher, changes)}

    async def _remove(self, sandbox: Sandbox, data: bytes) -> dict[str, Any]:
        watcher = _watcher(sandbox, data)
        del sandbox.watchers[parsed(WatcherRequest, data).watcher_id]
        async with watcher.turn:
            await watcher.watch.aclose()
        return {}


async def _stream(
    sandbox: Sandbox, watcher: Watcher
) -> AsyncGenerator[dict[str, Any], None]:
    yield {"start": {}}
    async for change in watcher.watch:
        for event in await _events(sandbox, watcher, [change]):
            yield {"filesystem": event}


async def _events(
    sandbox: Sandbox, watcher: Watcher, changes: Sequence[FileChange]
) -> list[dict[str, Any]]:
    events = [event for change in changes for event in _change_events(change)]
    if watcher.folder is None or not events:
        return events
    paths = [posixpath.join(watcher.folder, event["name"]) for event in events]
    found = await entries_of(sandbox, list(dict.fromkeys(paths)))
    return [
        {**event, "entry": found[path]} if path in found else event
        for event, path in zip(events, paths, strict=True)
    ]


def _change_events(change: FileChange) -> Iterator[dict[str, Any]]:
    """Yield the events of a change; what is renamed appears under its new name."""
    yield {"name": change.path, "type": _TYPES[change.kind]}
    if change.kind == "renamed":
        yield {"name": change.new_path, "type": _TYPES["created"]}


def _watcher(sandbox: Sandbox, data: bytes) -> Watcher:
    sandbox.session  # noqa: B018 - an ended one has none
    watcher_id = parsed(WatcherRequest, data).watcher_id
    if (found := sandbox.watchers.get(watcher_id)) is None:
        raise APIError(404, f"there is no watcher {watcher_id[:64]}")
    return found
