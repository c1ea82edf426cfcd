"""Snapshots and forks of sandboxes: files that outlive them, without processes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...http.bodies import Bounds
from ...http.tokens import Token
from ..operations.action import Actions
from ..operations.creation import CREATE, CreateArguments
from ..operations.snapshots import (
    FORK,
    MAX_COPIES,
    REMOVE_SNAPSHOT,
    SNAPSHOT_NAME,
    TAKE_SNAPSHOT,
    ForkArguments,
    RemoveSnapshotArguments,
    TakeArguments,
)
from ..protocol.bodies import page, parsed
from ..protocol.errors import APIError, as_api_error
from ..state.sandbox import Sandbox
from ..state.sandboxes import Sandboxes
from ..state.snapshots import Snapshot, Snapshots
from .control import Control, Handler
from .process_service import ClientMessage


class SnapshotRequest(ClientMessage):
    """A snapshot to take."""

    name: Annotated[str, Field(pattern=SNAPSHOT_NAME)] | None = None
    memory: bool | None = None


class ForkRequest(ClientMessage):
    """Copies of a sandbox to make."""

    count: Annotated[int, Field(ge=1, le=MAX_COPIES)] = 1
    timeout: int | None = None


class SnapshotControl:
    """Answers requests about snapshots and forks.

    Args:
        bounds: The bounds of a message.
        sandboxes: The open sandboxes.
        snapshots: The snapshots.
        actions: Leads what clients do through the guard.
        control: Shows sandboxes.
    """

    def __init__(
        self,
        bounds: Bounds,
        sandboxes: Sandboxes,
        snapshots: Snapshots,
        actions: Actions,
        control: Control,
    ) -> None:
        self._bounds = bounds
        self._sandboxes = sandboxes
        self._snapshots = snapshots
        self._actions = actions
        self._control = control
        one = "/sandboxes/{sandbox_id}"
        self.routes: list[tuple[str, str, Handler]] = [
            ("POST", f"{one}/snapshots", self._take),
            ("POST", f"{one}/fork", self._fork),
            ("GET", "/snapshots", self._list),
            ("DELETE", "/templates/{snapshot_id}", self._remove),
        ]
        """Method, path and handler of each route."""

    async def _take(self, request: Request, token: Token) -> Response:
        asked = await self._read(SnapshotRequest, request)
        if asked.memory:
            raise APIError(501, "snapshots keep files alone, not memory")
        sandbox = self._of(request, token)
        wanted = TakeArguments(sandbox_id=sandbox.id, name=asked.name)
        async with self._actions.do(TAKE_SNAPSHOT, token, wanted) as snapshot:
            return JSONResponse(_snapshot_json(snapshot), status_code=201)

    async def _fork(self, request: Request, token: Token) -> Response:
        """Answer with new sandboxes that begin with the files of one."""
        asked = await self._read(ForkRequest, request)
        source = self._of(request, token)
        wanted = ForkArguments(sandbox_id=source.id, count=asked.count)
        async with self._actions.do(FORK, token, wanted) as (snapshot, count):
            made = [
                await self._copy(source, snapshot, asked.timeout) for _ in range(count)
            ]
        return JSONResponse(made, status_code=201)

    async def _copy(
        self, source: Sandbox, snapshot: Snapshot, seconds: int | None
    ) -> dict[str, Any]:
        network = source.session.network
        wanted = CreateArguments(
            template=source.template,
            snapshot=snapshot.id,
            timeout=seconds,
            metadata=source.metadata,
            allow_internet_access=None if network.hosts else False,
            allow_out=list(network.hosts) or None,
        )
        try:
            async with self._actions.do(CREATE, source.token, wanted) as sandbox:
                return {"sandbox": self._control.with_access(sandbox)}
        except Exception as error:  # noqa: BLE001 - each copy has its own answer
            return {"error": as_api_error(error).to_json()}

    async def _list(self, request: Request, token: Token) -> Response:
        query = request.query_params
        wanted = {"sandbox_id": query.get("sandboxID"), "name": query.get("name")}
        found = [
            _snapshot_json(snapshot)
            for snapshot in self._snapshots.all_of(token)
            if all(
                value in (None, getattr(snapshot, key)) for key, value in wanted.items()
            )
        ]
        return page(found, query)

    async def _remove(self, request: Request, token: Token) -> Response:
        name = request.path_params["snapshot_id"]
        snapshot = self._snapshots.find(token, name)
        if snapshot is None:
            raise APIError(404, f"snapshot {name[:64]} not found")
        wanted = RemoveSnapshotArguments(snapshot_id=snapshot.id)
        async with self._actions.do(REMOVE_SNAPSHOT, token, wanted):
            pass
        return Response(status_code=204)

    async def _read(self, model: type[Any], request: Request) -> Any:
        return parsed(model, await self._bounds.read(request))

    def _of(self, request: Request, token: Token) -> Sandbox:
        return self._sandboxes.of(token, request.path_params["sandbox_id"])


def _snapshot_json(snapshot: Snapshot) -> dict[str, Any]:
    names = [] if snapshot.name is None else [snapshot.name]
    return {"snapshotID": snapshot.id, "names": names}
