"""Snapshots and forks of sandboxes: files that outlive them, without processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from pydantic import Field, StringConstraints
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..config.sandbox_api import SandboxAPIConfig
from ..mcp_http.tokens import Token
from ..sandbox_http.bodies import body, page, parsed
from ..sandbox_http.errors import APIError, as_api_error
from ..sandbox_state.sandbox import Sandbox
from ..sandbox_state.sandboxes import Sandboxes
from ..sandbox_state.snapshots import Snapshot, Snapshots
from .control import Control, CreateRequest, Handler
from .guarded import GuardedCalls
from .process_service import Message

_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


class SnapshotRequest(Message):
    """A snapshot to take."""

    name: _Name | None = None
    memory: bool | None = None


class ForkRequest(Message):
    """Copies of a sandbox to make."""

    count: Annotated[int, Field(ge=1, le=100)] = 1
    timeout: int | None = None


class SnapshotControl:
    """Answers requests about snapshots and forks.

    Args:
        settings: The limits.
        sandboxes: The open sandboxes.
        snapshots: The snapshots.
        calls: Admits what clients do.
        control: Makes sandboxes.
    """

    def __init__(
        self,
        settings: SandboxAPIConfig,
        sandboxes: Sandboxes,
        snapshots: Snapshots,
        calls: GuardedCalls,
        control: Control,
    ) -> None:
        self._settings = settings
        self._sandboxes = sandboxes
        self._snapshots = snapshots
        self._calls = calls
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
        wanted = await self._read(SnapshotRequest, request)
        if wanted.memory:
            raise APIError(501, "snapshots keep files alone, not memory")
        sandbox = self._of(request, token)
        async with self._taken(sandbox, "take", name=wanted.name) as snapshot:
            return JSONResponse(_shown(snapshot), status_code=201)

    async def _fork(self, request: Request, token: Token) -> Response:
        """Answer with new sandboxes that begin with the files of one."""
        wanted = await self._read(ForkRequest, request)
        source = self._of(request, token)
        async with self._taken(source, "fork", count=wanted.count) as snapshot:
            try:
                made = [
                    await self._copy(source, snapshot, wanted.timeout)
                    for _ in range(wanted.count)
                ]
            finally:
                self._snapshots.remove(snapshot)
        return JSONResponse(made, status_code=201)

    async def _copy(
        self, source: Sandbox, snapshot: Snapshot, seconds: int | None
    ) -> dict[str, Any]:
        try:
            wanted = CreateRequest(
                templateID=source.template, timeout=seconds, metadata=source.metadata
            )
            network = source.session.network
            sandbox = await self._control.create(
                source.token, wanted, network, snapshot
            )
        except Exception as error:  # noqa: BLE001 - each copy has its own answer
            return {"error": as_api_error(error).to_json()}
        return {"sandbox": self._control.with_access(sandbox)}

    @asynccontextmanager
    async def _taken(
        self, sandbox: Sandbox, operation: str, **arguments: Any
    ) -> AsyncIterator[Snapshot]:
        """Take a snapshot as a call of its sandbox."""
        call = {"operation": operation, **arguments}
        async with self._calls.of(sandbox, "snapshot", call) as permit:
            name = permit.call.arguments.get("name")
            named = name if isinstance(name, str) else None
            yield await self._snapshots.take(sandbox, named)

    async def _list(self, request: Request, token: Token) -> Response:
        query = request.query_params
        wanted = {"sandbox_id": query.get("sandboxID"), "name": query.get("name")}
        found = [
            _shown(each)
            for each in self._snapshots.all_of(token)
            if all(value in (None, getattr(each, key)) for key, value in wanted.items())
        ]
        return page(found, query)

    async def _remove(self, request: Request, token: Token) -> Response:
        name = request.path_params["snapshot_id"]
        snapshot = self._snapshots.find(token, name)
        if snapshot is None:
            raise APIError(404, f"snapshot {name[:64]} not found")
        call = {"operation": "remove", "snapshot_id": snapshot.id}
        async with self._calls.begun(
            "snapshot", call, agent_id=token.agent_id, run_id=f"token-{token.id}"
        ):
            self._snapshots.remove(snapshot)
        return Response(status_code=204)

    async def _read(self, model: type[Any], request: Request) -> Any:
        return parsed(model, await body(request, self._settings.max_body_bytes))

    def _of(self, request: Request, token: Token) -> Sandbox:
        return self._sandboxes.of(token, request.path_params["sandbox_id"])


def _shown(snapshot: Snapshot) -> dict[str, Any]:
    names = [] if snapshot.name is None else [snapshot.name]
    return {"snapshotID": snapshot.id, "names": names}
